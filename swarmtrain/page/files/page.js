// The run's page. All that it shows is the coordinator's view; it computes no figure of its own.
// Names and texts are peers' own words: they become text nodes, never markup.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const GLYPHS = {
  empty: "○", waiting: "◔", training: "●", skipped: "◐", disputed: "✖", lost: "✖", finished: "✔",
};
const PEER_GLYPHS = {
  training: "●", exchanging: "⇄", syncing: "↓", waiting: "◔", silent: "?", disconnected: "?",
  unreachable: "⚠", paused: "‖",
};
const PARTS = [
  ["train", "training"], ["wait", "waiting for others"], ["send", "sending"],
  ["gather", "the result spreads"], ["late", "not in this round"],
];
// Rows of a table, and of the picture of rounds: of thousands nobody reads more, and a browser that
// draws them each second does nothing else.
const ROWS_MAX = 200;
const AXES = [["tokens", "tokens"], ["seconds", "time"], ["round", "rounds"], ["bytes", "bytes"]];
const COLUMNS = [
  ["name", "name"], ["state", "state"], ["round", "round", 1], ["loss", "loss", 1],
  ["tokens_per_s", "tokens/s", 1], ["bytes_up", "up", 1], ["bytes_down", "down", 1],
  ["merged", "merged", 1], ["left_out", "left out", 1], ["reached", "ways"], ["peer", "key"],
];

let view = null, rounds = null, axis = "tokens", drawnRounds = "", drawnPicture = "";
let events = [], sorted = ["name", 1], scrubbed = null, source = null, plots = null;

function node(tag, attributes = {}, ...children) {
  const isDrawn = ["svg", "g", "rect", "line", "text", "circle", "path", "title"].includes(tag);
  const made = isDrawn ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

function amount(count) {
  if (count === null || count === undefined) return "–";
  for (const [size, word] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (count >= size) return `${Number((count / size).toPrecision(3))} ${word}`;
  return String(Number(count.toPrecision(3)));
}
const bytes = (count) => `${amount(count)}B`.replace(/(\d)B$/, "$1 B");
function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  return hours < 48 ? `${hours} h` : `${Math.round(hours / 24)} days`;
}
const fixed = (value, places) => (value === null || value === undefined ? "–" : value.toFixed(places));
const percent = (part) => (part === null || part === undefined ? "–" : `${Math.round(100 * part)} %`);

function facts(list, pairs) {
  list.replaceChildren(...pairs.map(([term, said]) => node("div", {}, node("dt", {}, term), node("dd", {}, said))));
}

function table(place, columns, rows, sort) {
  const head = node("tr", {}, ...columns.map(([key, title, isNumber]) => {
    const cell = node("th", { scope: "col", ...(isNumber ? { class: "number" } : {}) });
    if (!sort) { cell.append(title); return cell; }
    const isSorted = sorted[0] === key;
    if (isSorted) cell.setAttribute("aria-sort", sorted[1] > 0 ? "ascending" : "descending");
    const button = node("button", { type: "button", "data-key": key }, `${title}${isSorted ? (sorted[1] > 0 ? " ▲" : " ▼") : ""}`);
    button.addEventListener("click", () => sort(key));
    cell.append(button);
    return cell;
  }));
  const body = rows.slice(0, ROWS_MAX).map((row) => node("tr", {}, ...row.map((said, at) =>
    node("td", columns[at][2] ? { class: "number" } : {}, said))));
  if (rows.length > ROWS_MAX) body.push(node("tr", {}, node("td", { colspan: columns.length, class: "dim" }, `and ${rows.length - ROWS_MAX} more: sort or filter the peers, or take the CSV`)));
  const focused = document.activeElement?.dataset?.key;
  place.replaceChildren(node("thead", {}, head), node("tbody", {}, ...body));
  if (focused && sort) place.querySelector(`[data-key="${focused}"]`)?.focus();
}

// ---- who may look

async function look(secret) {
  const answer = await fetch("/api/v1/look", { method: "POST", body: JSON.stringify({ secret }) });
  return answer.ok ? "" : (await answer.json()).error;
}

async function open() {
  const secret = location.hash.slice(1);
  if (secret) {
    history.replaceState(null, "", location.pathname);
    const refusal = await look(secret);
    if (refusal) return lock(refusal);
  }
  let answer = await fetch("/api/v1/run");
  if (answer.status === 401 && !secret && !(await look(""))) answer = await fetch("/api/v1/run");
  if (answer.status === 401) return lock("");
  $("locked").hidden = true;
  $("panels").hidden = false;
  show(await answer.json());
  listen();
}

function lock(why) {
  source?.close();
  $("headline").textContent = "Who may look?";
  $("panels").hidden = true;
  $("locked").hidden = false;
  if (why) $("locked-why").textContent = why;
}

$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = $("secret").value.trim().split("#").pop();
  $("secret").value = "";
  open().catch(lost);
});

// ---- live

function listen() {
  source = new EventSource("/api/v1/stream");
  source.addEventListener("run", (message) => show(JSON.parse(message.data)));
  source.addEventListener("error", lost);
}

async function lost() {
  const since = view ? new Date(1000 * view.at_s).toLocaleTimeString() : null;
  $("lost").textContent = `✖ The coordinator does not answer.${since ? ` Shown is what was known at ${since}.` : ""} Peers train on meanwhile.`;
  $("lost").hidden = false;
  if (source?.readyState === EventSource.CLOSED || !source) {
    source?.close();
    source = null;
    await new Promise((done) => setTimeout(done, 3000));
    open().catch(lost);
  }
}

function show(now) {
  view = now;
  $("lost").hidden = true;
  const began = performance.now();
  $("run").textContent = now.run;
  document.title = `${now.headline} – ${now.run}`;
  const headline = `${GLYPHS[now.state] || ""} ${now.headline}`;
  if ($("headline").textContent !== headline) $("headline").textContent = headline;
  const seen = now.waiting_seen_s === null ? "" : `, last seen ${lasting(now.waiting_seen_s)} ago`;
  $("waiting").hidden = !now.waiting_for && now.state !== "skipped";
  $("waiting").textContent = now.waiting_for
    ? `◔ Waiting for ${now.waiting_for}${seen}.`
    : `◐ Round ${now.round} was skipped. Nobody lost anything: all train on from where they are.`;
  const isOwn = now.you.length > 0;
  facts($("facts"), [
    ["peers", now.peers.length], ["round", `${now.round} of ${now.rounds}`],
    ...(isOwn && now.loss === null ? [] : [["validation loss", now.round ? `${fixed(now.first_loss, 3)} → ${fixed(now.loss, 3)}` : fixed(now.loss, 3)]]),
    [`${now.unit} in results`, amount(now.tokens)], [`${now.unit} a second`, amount(now.tokens_per_s)],
    ["left", now.result ? "0" : lasting(now.left_s)], ["parameters", amount(now.num_values)],
    ["newcomers", now.door === "closed" ? "✖ closed" : "welcome"],
    ...(now.text ? [["text", now.text]] : []),
  ]);
  $("you-card").hidden = !now.you.length;
  facts($("you"), now.you);
  showMeters(now.meters);
  $("of-experts").hidden = !now.experts;
  $("of-experts").textContent = `Loss, rounds and exchange are those of expert 0 of ${now.experts}; tokens, bytes and contributions are of all. swarmtrain status tells each expert's.`;
  $("ask").hidden = !now.can_write || now.checkpoint < 0;
  if (!$("qr").src) $("qr").src = "/api/v1/qr.svg";
  $("join").hidden = now.state === "finished" || now.peers.length > 0;
  showPeers();
  drawTimeline();
  drawExchange();
  const moved = now.traffic;
  facts($("bytes"), [
    [isOwn ? "sent by you" : "sent by peers", bytes(moved.up)], ["received", bytes(moved.down)],
    ...(isOwn ? [] : [["passed on here", bytes(moved.relayed)]]),
    ["less than data-parallel", moved.fewer === null ? "–" : `${moved.fewer.toLocaleString()} ×`],
    ...(isOwn ? [] : [["each token in results", now.tokens ? bytes(moved.up / now.tokens) : "–"]]),
  ]);
  const senders = now.peers.filter((one) => one.bytes_up).sort((a, b) => b.bytes_up - a.bytes_up).slice(0, 20);
  const isCompared = senders.some((one) => one.fewer);
  table($("sent"), [["name", "name"], ["up", "sent", 1], ["down", "received", 1], ...(isCompared ? [["parallel", "data-parallel", 1], ["fewer", "less", 1]] : [])], senders.map((one) => [
    one.name, bytes(one.bytes_up), bytes(one.bytes_down),
    ...(isCompared ? [one.parallel_up ? bytes(one.parallel_up) : "–", one.fewer ? `${one.fewer.toLocaleString()} ×` : "–"] : []),
  ]));
  $("sent").hidden = !senders.length;
  table($("given"), [["name", "name"], ["rounds", "rounds", 1], ["tokens", now.unit, 1], ["streak", "in a row", 1]],
    now.contributions.slice(0, 20).map((one) => [`${one.name || one.peer}${one.is_in ? "" : " (gone)"}`, one.rounds, amount(one.tokens), one.streak]));
  table($("health"), [["name", "name"], ["norms", "norms, by round"], ["norm", "newest", 1], ["cosine", "cosine", 1], ["left", "left out", 1], ["rests", "rests"]],
    now.peers.map((one) => [one.name, curve(one), fixed(one.norm, 2), fixed(one.cosine, 2), one.left_out, one.rests || "–"]));
  $("notices").replaceChildren(...now.notices.slice().reverse().map((one) =>
    node("li", {}, `round ${one.round}: ${one.name ? `${one.name}, ` : ""}${one.kind}${one.text ? `: ${one.text}` : ""}`)));
  $("saved").textContent = now.checkpoint < 0 ? "None yet."
    : `After round ${now.checkpoint}, with the peers. On a peer's machine, swarmtrain export makes a folder of it and swarmtrain generate writes with it.`;
  $("updated").textContent = `As of ${new Date(1000 * now.at_s).toLocaleTimeString()}`;
  if (!rounds || now.round !== rounds.newest || now.loss !== rounds.lastLoss || now.peers.length !== rounds.numPeers) follow().catch(() => {});
  window.lastUpdateMs = performance.now() - began;
}

$("ask").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("written").textContent = "Writing…";
  try {
    const answer = await fetch("/api/v1/prompt", { method: "POST", body: JSON.stringify({ text: $("prompt").value }) });
    const told = await answer.json();
    $("written").textContent = told.text ?? told.error;
  } catch {
    $("written").textContent = "The model could not be asked.";
  }
});

// ---- rounds and events

let following = false;
async function follow() {
  if (following) return;
  following = true;
  try {
    const newest = view.round, lastLoss = view.loss, numPeers = view.peers.length;
    const [columns, more] = await Promise.all([
      fetch("/api/v1/rounds?points=500").then((answer) => answer.json()),
      fetch(`/api/v1/events${events.length ? `?after=${events[events.length - 1].index}` : ""}`).then((answer) => answer.json()),
    ]);
    rounds = { newest, lastLoss, numPeers, ...columns };
    events = events.concat(more).slice(-2000);
    showEvents();
    await drawLoss();
  } finally {
    following = false;
  }
}

function showEvents() {
  const wanted = $("event-filter").value.toLowerCase();
  const until = scrubbed ?? Infinity;
  const found = events.filter((one) => one.round <= until && one.text.toLowerCase().includes(wanted));
  $("events").replaceChildren(...found.slice(-200).reverse().map((one) =>
    node("li", {}, node("b", {}, `#${one.index}`), one.text)));
  const scrub = $("scrub");
  scrub.max = rounds?.round.length ? rounds.round.length - 1 : 0;
  if (scrubbed === null) scrub.value = scrub.max;
}

function scrubTo() {
  const at = Number($("scrub").value), last = Number($("scrub").max);
  const isNow = at >= last;
  scrubbed = isNow ? null : rounds.round[at];
  $("scrub-at").textContent = isNow ? "now" : scrubbed;
  $("scrub").setAttribute("aria-valuetext", isNow ? "now" : `round ${scrubbed}`);
  $("scrub-words").textContent = isNow ? "" :
    `${rounds.outcome[at]}, ${rounds.peers[at]} peers, ${amount(rounds.tokens[at])} ${view.unit} in results after ${lasting(rounds.seconds[at])}` +
    `${rounds.loss[at] === null ? "" : `, loss ${fixed(rounds.loss[at], 3)}`}.`;
  showEvents();
}
$("scrub").addEventListener("input", scrubTo);
$("scrub").addEventListener("change", () => { if (scrubbed !== null) tell(scrubbed); });
$("event-filter").addEventListener("input", showEvents);
$("filter").addEventListener("input", showPeers);

async function tell(round) {
  const answer = await fetch(`/api/v1/rounds/${round}`);
  const told = await answer.json();
  const lines = answer.ok ? told.story : [told.error];
  $("story").replaceChildren(node("h3", {}, `Round ${round}`), node("ul", {}, ...lines.map((line) => node("li", {}, line))));
}

function showPeers() {
  if (!view) return;
  const wanted = $("filter").value.toLowerCase(), [key, way] = sorted;
  const found = view.peers.filter((one) => `${one.name} ${one.state} ${one.peer}`.toLowerCase().includes(wanted));
  found.sort((a, b) => way * (typeof a[key] === "number" ? a[key] - b[key] : String(a[key]).localeCompare(String(b[key]))));
  const columns = COLUMNS.map(([name, title, isNumber]) => [name, title === "tokens/s" ? `${view.unit}/s` : title, isNumber]);
  table($("peers"), columns, found.map((one) => [
    one.name, state(one), one.round, one.loss ? fixed(one.loss, 3) : "–", amount(one.tokens_per_s),
    bytes(one.bytes_up), bytes(one.bytes_down), percent(one.merged), one.left_out, ways(one), one.peer,
  ]), (chosen) => { sorted = [chosen, sorted[0] === chosen ? -sorted[1] : 1]; showPeers(); });
}
function state(one) {
  const isQuiet = one.silent_s > 10 && !["left", "gone"].includes(one.state);
  const stages = one.stages.length ? `, stage ${one.stages.join(", ")}` : "";
  return isQuiet ? `? silent ${lasting(one.silent_s)}` : `${PEER_GLYPHS[one.state] || "·"} ${one.state}${stages}`;
}
const ways = (one) => Object.entries(one.reached).map(([way, count]) => `${count} ${way}`).join(", ") || "–";

// ---- pictures

function showMeters(meters) {
  $("meters").hidden = !meters.length;
  $("meters").replaceChildren(...meters.map((one) => {
    const words = `${bytes(one.used)} of ${bytes(one.most)}${one.unit === "B/s" ? " a second" : ""}`;
    return node("p", {}, node("label", {}, one.label, " ", node("meter", { min: 0, max: one.most, value: Math.min(one.used, one.most) })), " ", words);
  }));
}

function curve(one) {
  if (one.norms.length < 2) return "–";
  const wide = 84, high = 20, most = Math.max(...one.norms, 1e-9);
  const points = one.norms.map((norm, at) => `${((at * wide) / (one.norms.length - 1)).toFixed(1)} ${(high - (norm / most) * (high - 2)).toFixed(1)}`);
  return node("svg", { width: wide, height: high, role: "img", "aria-label": `Norms of ${one.name}: ${one.norms.map((norm) => fixed(norm, 2)).join(", ")}` },
    node("path", { d: `M${points.join("L")}`, class: "curve" }));
}

async function drawLoss() {
  const known = rounds.round.map((_, at) => at).filter((at) => rounds.loss[at] !== null && rounds[axis][at] !== null);
  const last = known[known.length - 1];
  $("axis").hidden = known.length < 2;
  $("plot-words").textContent = known.length === 1 ? `Loss ${fixed(rounds.loss[last], 3)} so far.` : known.length
    ? `Loss ${fixed(rounds.loss[known[0]], 3)} at first, ${fixed(rounds.loss[last], 3)} after round ${rounds.round[last]}.`
    : view.you.length ? "Validation losses are on the coordinator's page." : "No validation loss yet: it comes with the first results.";
  $("plot").hidden = known.length < 2;
  if (known.length < 2) return;
  plots ??= new Promise((done) => {
    const script = node("script", { src: "/plots.js" });
    script.onload = () => done(window.Plotly);
    script.onerror = () => done(null);
    document.head.append(script);
  });
  const Plotly = await plots;
  if (!Plotly) { $("plot").hidden = true; return; }
  const style = getComputedStyle(document.documentElement), ink = style.getPropertyValue("--ink").trim();
  const line = style.getPropertyValue("--line").trim(), colour = style.getPropertyValue("--train").trim();
  const skipped = rounds.round.map((_, at) => at).filter((at) => rounds.outcome[at] === "skipped" && rounds[axis][at] !== null);
  const floor = Math.min(...known.map((at) => rounds.loss[at]));
  const band = rounds.round.map((_, at) => at).filter((at) => rounds.low[at] !== null && rounds[axis][at] !== null);
  const x = (places) => places.map((at) => rounds[axis][at]);
  const traces = [
    { x: x(band), y: band.map((at) => rounds.high[at]), mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false },
    { x: x(band), y: band.map((at) => rounds.low[at]), mode: "lines", line: { width: 0 }, fill: "tonexty", fillcolor: `${colour}33`, name: "training, over the peers", hoverinfo: "skip" },
    { x: x(known), y: known.map((at) => rounds.loss[at]), mode: "lines+markers", line: { color: colour }, marker: { size: 4 }, name: "validation" },
    { x: x(skipped), y: skipped.map(() => floor), mode: "markers", marker: { symbol: "x", color: style.getPropertyValue("--late").trim() }, name: "skipped round", text: skipped.map((at) => `round ${rounds.round[at]}`) },
  ].filter((trace) => trace.x.length);
  const axes = { gridcolor: line, zerolinecolor: line, color: ink }, began = performance.now();
  await Plotly.react("plot", traces, {
    margin: { l: 50, r: 10, t: 44, b: 40 }, paper_bgcolor: "transparent", plot_bgcolor: "transparent",
    font: { color: ink }, legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
    xaxis: { ...axes, title: { text: { seconds: "seconds", round: "rounds", tokens: view.unit, bytes: "bytes sent by all" }[axis] } },
    yaxis: { ...axes, title: { text: "nats" } },
  }, { displayModeBar: false, responsive: true });
  window.lastDrawMs = performance.now() - began;
}

function drawTimeline() {
  const shown = view.timeline.slice(-30), names = new Map(view.peers.map((one) => [one.peer, one.name]));
  const key = JSON.stringify([shown, [...names]]);
  if (key === drawnRounds) return;
  drawnRounds = key;
  if (!shown.length) { $("timeline").replaceChildren(node("p", {}, view.you.length ? "Times of rounds are on the coordinator's page; the events below tell what became of each." : "No round was planned yet.")); return; }
  const others = new Set(view.peers.filter((one) => one.expert).map((one) => one.peer));
  const peers = [...new Set([...[...names.keys()].filter((peer) => !others.has(peer)), ...shown.flatMap((one) => Object.keys(one.ready).map((peer) => peer.slice(0, 16)))])].slice(0, ROWS_MAX);
  const left = 120, high = 18, spans = shown.map((one) => Math.max(one.ended ?? one.frozen ?? one.planned, 0.001));
  const total = spans.reduce((sum, one) => sum + one, 0), wide = Math.max(560, 40 * shown.length), scale = (wide - left) / total;
  const drawn = node("svg", { width: wide, height: high * peers.length + 34, role: "group", "aria-label": "Rounds by peer" });
  peers.forEach((peer, row) => {
    const label = node("text", { x: 0, y: 34 + high * row, class: names.has(peer) ? "" : "dim" }, (names.get(peer) ?? peer.slice(0, 8)).slice(0, 16));
    drawn.append(label);
  });
  let at = left;
  shown.forEach((one, number) => {
    const span = spans[number] * scale, isSkipped = one.outcome === "skipped";
    const place = (seconds) => at + Math.min(seconds, spans[number]) * scale;
    const ready = new Map(Object.entries(one.ready).map(([peer, seconds]) => [peer.slice(0, 16), seconds]));
    peers.forEach((peer, row) => {
      const y = 22 + high * row, bar = (from, to, kind, words) => {
        if (to - from < 0.4) return;
        drawn.append(node("rect", { x: from, y, width: to - from, height: high - 5, class: kind }, node("title", {}, words)));
      };
      const who = names.get(peer) ?? peer.slice(0, 8);
      if (!ready.has(peer)) { bar(at + 1, at + span - 1, "late", `${who} is not in round ${one.round}`); return; }
      const sent = one.frozen ?? one.ended ?? one.planned;
      bar(at, place(ready.get(peer)), "train", `${who} trains for ${fixed(ready.get(peer), 1)} s`);
      bar(place(ready.get(peer)), place(one.planned), "wait", `${who} waits for ${fixed(one.planned - ready.get(peer), 1)} s`);
      bar(place(one.planned), place(sent), "send", `${who} sends for ${fixed(sent - one.planned, 1)} s`);
      bar(place(sent), place(one.ended ?? sent), "gather", "the result spreads");
    });
    if (one.frozen !== null) drawn.append(node("line", { x1: place(one.frozen), x2: place(one.frozen), y1: 18, y2: 20 + high * peers.length, class: "cut" }));
    const button = node("text", { x: at + 2, y: 13, role: "button", tabindex: 0, "aria-label": `Why of round ${one.round}${isSkipped ? ", which was skipped" : ""}` }, `${isSkipped ? "◐" : ""}${one.round}`);
    button.addEventListener("click", () => tell(one.round));
    button.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); tell(one.round); } });
    if (span > 18 || number === shown.length - 1) drawn.append(button);
    at += span;
  });
  const frame = $("timeline").parentElement, isAtEnd = frame.scrollLeft + frame.clientWidth >= frame.scrollWidth - 40;
  $("timeline").replaceChildren(drawn);
  if (isAtEnd) frame.scrollLeft = frame.scrollWidth;
}

function drawExchange() {
  const found = view.exchange, key = JSON.stringify(found);
  if (key === drawnPicture) return;
  drawnPicture = key;
  if (!found) { $("exchange").replaceChildren(); $("exchange-words").textContent = "No exchange was planned yet."; return; }
  if (found.seats.length) { drawStages(found); return; }
  const size = 320, middle = size / 2, radius = 120, count = found.corners.length;
  const drawn = node("svg", { viewBox: `0 0 ${size} ${size}`, width: "100%", height: 300, role: "img", "aria-label": `Exchange of round ${found.round} between ${count} peers` });
  const place = (number) => [middle + radius * Math.sin((2 * Math.PI * number) / count), middle - radius * Math.cos((2 * Math.PI * number) / count)];
  const most = Math.max(1, ...found.edges.map(([, , moved]) => moved));
  for (const [a, b, moved] of found.edges) {
    const [x1, y1] = place(a), [x2, y2] = place(b), bend = found.kind === "pair" ? 0 : 14;
    const [nx, ny] = [(y1 - y2) / (2 * radius), (x2 - x1) / (2 * radius)];
    drawn.append(node("path", { d: `M${x1} ${y1} Q${(x1 + x2) / 2 + bend * nx} ${(y1 + y2) / 2 + bend * ny} ${x2} ${y2}`, class: "edge", "stroke-width": 0.6 + (3 * moved) / most },
      node("title", {}, `${found.corners[a].name} to ${found.corners[b].name}: ${bytes(moved)}`)));
  }
  found.corners.forEach((one, number) => {
    const [x, y] = place(number);
    drawn.append(node("circle", { cx: x, cy: y, r: count > 24 ? 4 : 8, class: "node" }, node("title", {}, `${one.name}: ${percent(one.share)} of the sum`)));
    if (count <= 16) drawn.append(node("text", { x: x + (x > middle ? 10 : -10), y: y + (y > middle ? 18 : -10), "text-anchor": x > middle + 5 ? "start" : x < middle - 5 ? "end" : "middle" }, one.name.slice(0, 14)));
  });
  $("exchange").replaceChildren(drawn);
  const kinds = { mean: "Each peer sums a slice and gives the result to all.", pair: "Pairs exchange; nobody else is needed.", gather: "Everybody gets everybody's contribution." };
  $("exchange-words").textContent = `Round ${found.round}. ${kinds[found.kind] || ""}`;
}

function drawStages(found) {
  const count = 1 + Math.max(...found.seats.map((one) => one.stage)), rows = Array.from({ length: count }, () => 0);
  const column = 130, places = found.seats.map((one) => [column * (one.stage + 0.5), 44 + 52 * rows[one.stage]++]);
  const wide = column * count, high = 30 + 52 * Math.max(...rows);
  const drawn = node("svg", { viewBox: `0 0 ${wide} ${high}`, class: "stages", style: `max-width:${wide}px;min-width:${84 * count}px`, role: "img", "aria-label": `Routes of micro-batches through ${count} stages` });
  const most = Math.max(1, ...found.edges.map(([, , moved]) => moved));
  for (const [a, b, moved] of found.edges) {
    const [x1, y1] = places[a], [x2, y2] = places[b], middle = (x1 + x2) / 2;
    drawn.append(node("path", { d: `M${x1} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`, class: moved ? "edge" : "edge idle", "stroke-width": moved ? 1 + (7 * moved) / most : 1 },
      node("title", {}, `${found.seats[a].name} to ${found.seats[b].name}: about ${bytes(moved)} a round`)));
  }
  for (let stage = 0; stage < count; stage++)
    drawn.append(node("text", { x: column * (stage + 0.5), y: 14, "text-anchor": "middle", class: "dim" }, rows[stage] ? `stage ${stage}` : `stage ${stage}: nobody`));
  found.seats.forEach((one, number) => {
    const [x, y] = places[number];
    drawn.append(node("circle", { cx: x, cy: y, r: 8, class: "node" }, node("title", {}, `${one.name}, stage ${one.stage}: ${one.counted} micro-batches counted`)));
    drawn.append(node("text", { x, y: y + 22, "text-anchor": "middle", class: "onto" }, one.name.slice(0, 14)));
  });
  const frame = node("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": "Stages and routes" }, drawn);
  $("exchange").replaceChildren(frame);
  $("exchange-words").textContent = "Micro-batches go through the stages in order, each over any peer of the next. Width is about the bytes of the newest round, by what each peer has counted.";
}

// ---- once

$("legend").replaceChildren(...PARTS.map(([kind, words]) => {
  const one = node("span", { class: kind }, words);
  one.style.setProperty("--colour", `var(--${kind})`);
  return one;
}), node("span", { style: "--colour:transparent" }, "┆ the cut: who had not sent is left out"));
$("axis").append(...AXES.map(([name, words]) => {
  const choice = node("input", { type: "radio", name: "axis", value: name, ...(name === axis ? { checked: "" } : {}) });
  choice.addEventListener("change", () => { axis = name; if (rounds) drawLoss(); });
  return node("label", {}, choice, ` ${words}`);
}));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (rounds) drawLoss(); });
open().catch(lost);
