#!/usr/bin/env python3
"""Peers behind routers of every kind: by what ways they meet, and whether they train.

    nat.py --nats cone,restricted,symmetric,none[,mapped]     # all pairs of these kinds
    nat.py --scenario four|ipv6|together|home-coordinator|stages|planned|healing|churn
    nat.py --relay-only --net 100:0                           # exchanges through one relay, timed

For each pair a coordinator on the public internet of natlab.sh and two peers behind routers of
these kinds, started by `swarmtrain up` and `swarmtrain join` as volunteers do. Told: the way of
each direction, seconds from when both were in the run until the first round with both in it,
whether their state roots are equal after every round. Asked: direct (dialled or turned) where one
end is open or maps its port, restricted to restricted punched, symmetric to symmetric relayed.

Scenarios: `four` peers each behind its own router; `ipv6` alone; two `together` behind one router;
`home-coordinator` behind a router that maps; `stages`, a pipeline of three behind routers;
`planned`, seconds per round where two of four have but a relay between them, by those without
routers; `healing`, seconds from a restart of a router, another address or a relay's death until
both are in rounds again; `churn`, four peers whose routers restart or get other addresses, and
relays that are killed, every 10 s (`--every`) for `--minutes`, after two undisturbed ones.

Linux only; as root; nftables, and miniupnpd for mapped. Exit status 1 if anything asked is missed.
"""

import argparse
import contextlib
import itertools
import json
import math
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nat_bars
import nat_relayed
from nat_bars import ROUNDS, UNTOLD, Fact, Row
from nat_swarm import NatLab, Swarm, has_command
from network import Failed

from swarmtrain.local_run.place import COORDINATOR

KINDS = ("cone", "restricted", "symmetric", "none")
HUB = "hub"
REFUSING_NET = "0:40"
"""On a net without any delay the SYNs of two who dial at once never cross: one is refused first."""

PLANNED_NET = "20:0"
PLANNED_WIDTH = 384
PLANNED_WARMUP, PLANNED_ROUNDS = 3, 12
PLANNED_BAR = 1.1
RELAYED_NET = "100:0"

HEALING_KINDS = (
    ("none", "symmetric"), ("none", "mapped"), ("restricted", "restricted"),
    ("symmetric", "symmetric"),
)  # fmt: skip
HEAL_S, HEALED_ROUNDS, DRAINED_S = 5.0, 2, 0.5

CALM_MINUTES = 2.0
RATE_BAR = 0.7
RELAYS = 2
CHURN_STEPS = 100
STAGES = 3
STAGED = f"""\
[pipeline]
stages = {STAGES}
"""


@dataclass(frozen=True)
class Setting:
    """A scenario's net and run.

    Attributes:
        sites: KIND[:PEERS] of each site.
        places: SITE[.PEER] of each process; the coordinator's is by COORDINATOR.
        family: 4 or 6.
        more: end of the run file.
        least: contributors that a round needs, 0 for all.
        steps: inner steps of a round.
        width: width of the model.
        peer_words: more options of `join`, by peer.
    """

    sites: dict[str, str]
    places: dict[str, str]
    family: int = 4
    more: str = ""
    least: int = 0
    steps: int = 20
    width: int = 16
    peer_words: dict[str, Sequence[str]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the peers."""
        return [name for name in self.places if name != COORDINATOR]

    def asked(self, sender: str, receiver: str) -> tuple[str, ...]:
        """Return the ways that are good enough between two peers."""
        sites = [self.places[name].partition(".")[0] for name in (sender, receiver)]
        if sites[0] == sites[1]:
            return nat_bars.DIRECT
        one, other = (self.sites[site].partition(":")[0] for site in sites)
        return nat_bars.asked(one, other, self.family)


def each_own(*kinds: str, **more: Any) -> Setting:
    """Return a setting in which each peer has its own site, named after it."""
    names = [f"p{index}" for index in range(len(kinds))]
    sites = {HUB: "none", **dict(zip(names, kinds, strict=True))}
    return Setting(sites, {COORDINATOR: HUB, **{name: name for name in names}}, **more)


def setting_of(scenario: str, kinds: Sequence[str] = ()) -> Setting:
    """Return the setting of a scenario.

    Args:
        scenario: name of it.
        kinds: kinds of the peers' routers in place of its own, where each peer has one.
    """
    match scenario:
        case "four":
            return each_own(*(kinds or ("cone", "restricted", "restricted", "symmetric")))
        case "ipv6":
            return each_own(*(kinds or ("none", "restricted", "restricted")), family=6)
        case "together":
            return Setting(
                {HUB: "none", "home": "restricted:2"},
                {COORDINATOR: HUB, "p0": "home.0", "p1": "home.1"},
            )
        case "home-coordinator":
            return Setting(
                {"home": "mapped", "p0": "restricted", "p1": "none"},
                {COORDINATOR: "home", "p0": "p0", "p1": "p1"},
            )
        case "stages":
            kinds = kinds or ("restricted", "restricted", "symmetric")
            spans = {f"p{index}": ("--span", str(index % STAGES)) for index in range(len(kinds))}
            return each_own(*kinds, more=STAGED, peer_words=spans, least=1)
        case "planned":
            kinds = kinds or ("none", "none", "symmetric", "symmetric")
            return each_own(*kinds, steps=1, width=PLANNED_WIDTH)
        case "churn":
            kinds = kinds or ("restricted", "restricted", "symmetric", "mapped")
            # Who is away for a moment is no reason for the others to skip a round.
            return each_own(*kinds, least=1, steps=CHURN_STEPS)
    raise ValueError(scenario)


SCENARIOS = (
    "four",
    "ipv6",
    "together",
    "home-coordinator",
    "stages",
    "planned",
    "healing",
    "churn",
)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument("--nats", default="", help="kinds of routers; of a scenario's peers, one each")
    a.add_argument("--scenario", choices=SCENARIOS, help="in place of the pairs")
    a.add_argument("--relay-only", action="store_true", help="exchanges through one relay, timed")
    a.add_argument("--peers", type=int, default=2, help="of --relay-only")
    a.add_argument("--numel", type=float, default=5e6, help="values of a vector of --relay-only")
    a.add_argument("--net", default="", help="RATE:RTT[:LOSS] of each line (see natlab.sh)")
    a.add_argument("--refuse", action="store_true", help="routers answer strangers with RST")
    a.add_argument("--seconds", type=float, default=90, help="for a pair or scenario to train")
    a.add_argument("--minutes", type=float, default=10, help="of churn")
    a.add_argument("--every", type=float, default=10, help="seconds from one fault to the next")
    a.add_argument("--seed", type=int, default=7, help="of the order of faults")
    a.add_argument("--keep", action="store_true", help="leave the last lab and all files")
    a.add_argument("--json", action="store_true", help="print one JSON object")
    options = a.parse_args(words)
    usual = REFUSING_NET if options.refuse else "0:0"
    if options.relay_only:
        usual = RELAYED_NET
    elif options.scenario == "planned":
        usual = PLANNED_NET
    options.net = options.net or usual
    if options.relay_only and not float(options.net.partition(":")[0]):
        a.error("--relay-only measures a rate: --net RATE:RTT")
    options.kinds = tuple(options.nats.split(",")) if options.nats else ()
    try:
        options.pairs = nat_bars.pairs_of(options.kinds or KINDS)
    except ValueError as error:
        a.error(str(error))
    return options


@contextlib.contextmanager
def playing(
    options: argparse.Namespace, setting: Setting, *, keeps: bool
) -> Iterator[tuple[NatLab, Swarm]]:
    """A lab, and a swarm on it that has been started.

    Args:
        options: options of the command.
        setting: net and run.
        keeps: namespaces and files are left.

    Raises:
        Failed: something has ended before its time.
    """
    folder = Path(tempfile.mkdtemp(prefix="nat-"))
    lab = NatLab(
        setting.sites, net=options.net, family=setting.family, refuses=options.refuse, keeps=keeps
    )
    try:
        with lab, Swarm(
            lab, folder, setting.places, more=setting.more, steps=setting.steps,
            width=setting.width, least=setting.least,
        ) as swarm:  # fmt: skip
            swarm.start(peer_words=setting.peer_words)
            yield lab, swarm
    finally:
        if keeps:
            print(f"All files: {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def meet(options: argparse.Namespace, kinds: tuple[str, str], *, keeps: bool) -> Row:
    """Try one pair."""
    setting = each_own(*kinds)
    row = Row(kinds, nat_bars.asked(*kinds))
    one, other = setting.names
    try:
        with playing(options, setting, keeps=keeps) as (_, swarm):
            try:
                swarm.hear(
                    options.seconds,
                    lambda: len(swarm.common()) >= ROUNDS and has_met(setting, swarm),
                )
            finally:
                row.there, row.back = swarm.way(one, other), swarm.way(other, one)
                row.first_s, row.rounds = swarm.first_s(), len(swarm.common())
                row.roots_differ = swarm.differing()
    except Failed as problem:
        row.failed = str(problem)
    return row


def has_met(setting: Setting, swarm: Swarm) -> bool:
    """Return True once all ways are as asked; they may get better while a run goes on. Where none
    is told, there is nothing to wait for."""
    found = {pair: swarm.way(*pair) for pair in itertools.permutations(setting.names, 2)}
    return all(way == UNTOLD or way in setting.asked(*pair) for pair, way in found.items())


# ---- scenarios


def relayed(options: argparse.Namespace) -> list[Fact]:
    """Exchanges through one relay."""
    with tempfile.TemporaryDirectory(prefix="nat-") as folder:
        try:
            return nat_relayed.measure(
                options.net, options.peers, int(options.numel), options.seconds, Path(folder)
            )
        except Failed as problem:
            return [Fact("failed", str(problem), "all go on to the end", holds=False)]


def play(options: argparse.Namespace) -> list[Fact]:
    """Play a scenario; its facts."""
    if options.scenario == "healing":
        return list(healing(options))
    setting = setting_of(options.scenario, options.kinds)
    try:
        if options.scenario == "planned":
            return list(planned(options, setting))
        with playing(options, setting, keeps=options.keep) as (lab, swarm):
            match options.scenario:
                case "stages":
                    return list(stages(options, setting, swarm))
                case "churn":
                    return list(churn(options, lab, swarm))
                case _:
                    return list(trained(options, setting, swarm))
    except Failed as problem:
        return [Fact("failed", str(problem), "all go on to the end", holds=False)]


def trained(options: argparse.Namespace, setting: Setting, swarm: Swarm) -> Iterator[Fact]:
    """All peers make some rounds together, by ways that are good enough."""
    swarm.hear(options.seconds, lambda: len(swarm.common()) >= ROUNDS and has_met(setting, swarm))
    first_s, rounds = swarm.first_s(), len(swarm.common())
    yield Fact(
        "rounds of all", f"{rounds}, the first after {first_s:.1f} s" if first_s else "none",
        f"{ROUNDS} in {options.seconds:.0f} s", holds=rounds >= ROUNDS,
    )  # fmt: skip
    yield roots(swarm)
    for sender, receiver in itertools.permutations(setting.names, 2):
        way, asked = swarm.way(sender, receiver), setting.asked(sender, receiver)
        places = [setting.places[name] for name in (sender, receiver)]
        kinds = [setting.sites[place.partition(".")[0]].partition(":")[0] for place in places]
        yield Fact(
            f"{sender} ({kinds[0]}) to {receiver} ({kinds[1]})", way,
            nat_bars.asked_words(asked), holds=way in asked,
        )  # fmt: skip


def roots(swarm: Swarm) -> Fact:
    """State roots of all rounds that more than one peer was in."""
    differing = swarm.differing()
    found = f"differ after rounds {differing[:10]}" if differing else "equal"
    if not any(swarm.rounds.values()):
        found = "none was told"
    return Fact("state roots", found, "equal after every round", holds=found == "equal")


def stages(options: argparse.Namespace, setting: Setting, swarm: Swarm) -> Iterator[Fact]:
    """Each peer serves a stage; whatever is counted has gone from one to the next and back."""
    names = setting.names
    swarm.hear(options.seconds, lambda: all(len(swarm.rounds[name]) >= ROUNDS for name in names))
    rounds = min(len(swarm.rounds[name]) for name in names)
    yield Fact(
        "rounds of every stage", str(rounds), f"{ROUNDS} in {options.seconds:.0f} s",
        holds=rounds >= ROUNDS,
    )  # fmt: skip
    pipeline = swarm.status().get("pipeline", {})
    counts = {name: pipeline.get(name, 0) for name in ("made", "whole", "lost", "redone")}
    yield Fact(
        "micro-batches", ", ".join(f"{count} {name}" for name, count in counts.items()),
        "some are whole", holds=counts["whole"] > 0,
    )  # fmt: skip
    for sender, receiver in itertools.pairwise(names):
        for pair in ((sender, receiver), (receiver, sender)):
            way = swarm.way(*pair)
            asked = setting.asked(*pair)
            yield Fact(" to ".join(pair), way, nat_bars.asked_words(asked), holds=way in asked)


def healing(options: argparse.Namespace) -> Iterator[Fact]:
    """Seconds from a fault until both are in rounds again; in peace that takes less than one."""
    for kinds in HEALING_KINDS if not options.kinds else (options.kinds,):
        name = " - ".join(kinds)
        try:
            with playing(options, each_own(*kinds), keeps=options.keep) as (lab, swarm):
                relays = [f"relay{index}" for index in range(RELAYS)]
                needs_relay = nat_bars.asked(*kinds) == nat_bars.RELAYED
                for relay in relays if needs_relay else ():
                    swarm.begin(relay, "relay", "--name", relay, place=HUB)
                if not swarm.hear(options.seconds, lambda: len(swarm.common()) >= ROUNDS):
                    raise Failed("no rounds with both before any fault")
                for deed in ("restart", "move"):
                    lab.order(deed, swarm.names[-1])
                    yield healed(swarm, f"{name}, {deed}", options.seconds)
                if needs_relay:
                    carrying = [one for one in swarm.status()["relays"] if one["ways"]]
                    if not carrying:
                        raise Failed("no relay carries anything")
                    swarm.kill(max(carrying, key=lambda one: one["ways"])["name"])
                    yield healed(swarm, f"{name}, a relay dies", options.seconds)
        except Failed as problem:
            yield Fact(name, str(problem), "all go on to the end", holds=False)


def healed(swarm: Swarm, name: str, limit_s: float) -> Fact:
    """Wait for rounds with both that were not as good as over at the fault, which was just now."""
    began_s = time.monotonic()
    swarm.hear(DRAINED_S)
    before = max(swarm.common())

    def later() -> list[int]:
        return [number for number in swarm.common() if number > before]

    if not swarm.hear(limit_s, lambda: len(later()) >= HEALED_ROUNDS):
        return Fact(name, f"not in {limit_s:.0f} s", f"within {HEAL_S:.0f} s", holds=False)
    took_s = swarm.common()[later()[HEALED_ROUNDS - 1]] - began_s
    return Fact(name, f"{took_s:.1f} s", f"within {HEAL_S:.0f} s", holds=took_s <= HEAL_S)


def planned(options: argparse.Namespace, setting: Setting) -> Iterator[Fact]:
    """Seconds per round where some pairs have but a relay, by those where all meet directly."""
    medians = {}
    for name, tried in {
        "without routers": each_own(*("none" for _ in setting.names), width=setting.width, steps=1),
        "behind routers": setting,
    }.items():
        with playing(options, tried, keeps=False) as (_, swarm):
            wanted = PLANNED_WARMUP + PLANNED_ROUNDS
            if not swarm.hear(options.seconds, lambda: len(swarm.common()) >= wanted):  # noqa: B023
                raise Failed(f"{name}: {len(swarm.common())} rounds of {wanted}")
            ended = [at_s for _, at_s in sorted(swarm.common().items())][PLANNED_WARMUP - 1 :]
            medians[name] = statistics.median(b - a for a, b in itertools.pairwise(ended))
            yield Fact(f"a round {name}", f"{medians[name]:.2f} s")
    ratio = medians["behind routers"] / medians["without routers"]
    yield Fact("ratio", f"{ratio:.2f}", f"at most {PLANNED_BAR}", holds=ratio <= PLANNED_BAR)


# ---- churn


def churn(options: argparse.Namespace, lab: NatLab, swarm: Swarm) -> Iterator[Fact]:
    """Two calm minutes, then faults; rounds a minute of both."""
    chance = random.Random(options.seed)
    routers = [name for name, kind in lab.sites.items() if kind != "none"]
    relays = [f"relay{index}" for index in range(RELAYS)] if has_command("relay") else []
    for name in relays:
        swarm.begin(name, "relay", "--name", name, place=HUB)
    if not swarm.hear(options.seconds, lambda: len(swarm.common()) >= ROUNDS):
        raise Failed("the four never made rounds together")
    calm = rounds_a_minute(swarm, CALM_MINUTES)
    done: list[tuple[float, str]] = []

    def break_something() -> None:
        deed, target = chance.choice([
            *(("restart", name) for name in routers), *(("move", name) for name in routers),
            *(("kill", name) for name in relays),
        ])  # fmt: skip
        done.append((time.monotonic(), deed))
        if deed == "kill":
            swarm.kill(target)
            swarm.begin(target, "relay", "--name", target, place=HUB)
        else:
            lab.order(deed, target)

    stormy = rounds_a_minute(swarm, options.minutes, options.every, break_something)
    # Somebody may have been broken a moment ago: all shall be in a round once more.
    ended = max(swarm.common(), default=0)
    is_whole = swarm.hear(options.seconds, lambda: max(swarm.common(), default=0) > ended)
    yield from pauses(swarm, done)
    yield roots(swarm)
    swarm.status()
    lost = [f"{peer[:8]}: {reason}, {times} x" for (peer, reason), times in swarm.lost.items()]
    yield Fact("given up", "; ".join(lost) or "nobody", "nobody", holds=not lost)
    yield Fact("at the end", "all" if is_whole else "not all", "all in a round", holds=is_whole)
    ratio = stormy / calm if calm else 0.0
    yield Fact(
        "rounds a minute", f"{stormy:.1f} of {calm:.1f} undisturbed, {ratio:.2f}",
        f"at least {RATE_BAR}", holds=ratio >= RATE_BAR,
    )  # fmt: skip


def pauses(swarm: Swarm, done: Sequence[tuple[float, str]]) -> Iterator[Fact]:
    """How long each kind of fault held up the run, and all who are in it; before the next one it
    may have done neither."""
    ends = sorted({min(told[number][0] for told in swarm.rounds.values() if number in told)
                   for number in set().union(*swarm.rounds.values())})  # fmt: skip
    whole = sorted(swarm.common().values())
    for deed, count in sorted(Counter(deed for _, deed in done).items()):
        found = []
        for moments in (ends, whole):
            waits = [
                next((end_s - at_s for end_s in moments if end_s > at_s), math.inf)
                for at_s, other in done
                if other == deed
            ]
            found.append(f"{statistics.median(waits):.1f} s")
        yield Fact(f"{count} x {deed}", f"a round after {found[0]}, one with all after {found[1]}")


def rounds_a_minute(
    swarm: Swarm, minutes: float, every_s: float = 0.0, deed: Callable[[], None] | None = None
) -> float:
    """Count the run's rounds for so long, with a deed every so many seconds."""
    until_s = time.monotonic() + 60 * minutes
    before = swarm.status().get("committed", 0)
    while (left_s := until_s - time.monotonic()) > 0:
        if deed is not None:
            deed()
        swarm.hear(min(every_s or left_s, left_s))
        swarm.status()
    swarm.hear(1.0)
    return float((swarm.status().get("committed", 0) - before) / minutes)


def main(words: list[str] | None = None) -> int:
    """Try all that was asked; the exit status."""
    options = arguments(words)
    if options.scenario or options.relay_only:
        facts = relayed(options) if options.relay_only else play(options)
        holds = all(fact.holds for fact in facts)
        name = "relay-only" if options.relay_only else options.scenario
        told: dict[str, Any] = {"scenario": name, "facts": [asdict(fact) for fact in facts]}
        lines = [fact.line for fact in facts]
    else:
        rows = []
        for index, kinds in enumerate(options.pairs):
            is_last = index == len(options.pairs) - 1
            rows.append(meet(options, kinds, keeps=options.keep and is_last))
            print(f"{' - '.join(kinds)}: {rows[-1].verdict}", file=sys.stderr)
        holds = all(row.holds for row in rows)
        told = {"pairs": [row.as_json() for row in rows]}
        lines = nat_bars.table(rows)
    if options.json:
        print(json.dumps({**told, "net": options.net, "refuse": options.refuse, "holds": holds}))
    else:
        print(*lines, sep="\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
