"""The shapes: every line of the table, as one object.

A ratio of losses is that of held-out losses at the end, seed by seed, after equal tokens. Bytes
are payload that a peer sends; seconds are modelled (`swarmtrain.compare.costs`).
"""

import math
from dataclasses import replace
from statistics import mean

from judged import (
    Bar,
    Figure,
    Runs,
    Sense,
    Shape,
    loss,
    loss_at_most,
    loss_ratio,
    loss_ratio_and_noise,
    of_each,
    ratio,
)
from trials import ASYNCHRONOUS, UNEQUAL, Length, Run, Trial

from swarmtrain.compare.plan import Attack
from swarmtrain.compare.request import RULES

TEN_TIMES = (1.0, 0.1)
HOSTILE_PEERS = 2
PEAK_SHARE = 0.85
"""Fragments are whole layers: the largest of three is 37 % of the sweep model, not 33."""

DDP = Trial("ddp")
DILOCO = Trial("diloco")
DDP_FAR = Trial("ddp", "ddp-far", Length.FAR)
DILOCO_FAR = Trial("diloco", "diloco-far", Length.FAR)
DILOCO_500 = Trial("diloco", "diloco-500", Length.LONG)
FP32 = Trial("diloco:codec=none")
FEEDBACK = Trial("diloco:codec=two_bit:error_feedback=yes")
STREAMING = Trial("streaming:codec=int8", length=Length.FRAGMENTS)
DILOCO_51 = Trial("diloco", length=Length.FRAGMENTS)
EAGER = Trial("eager")
EAGER_FAR = Trial("eager", "eager-far", Length.FAR)
CO2 = Trial("co2")
CO2_FAR = Trial("co2", "co2", Length.FAR)
NOLOCO = Trial("noloco")
GOSSIP_8, NOLOCO_8 = (Trial(name, "noloco", peers=8) for name in ("gossip", "noloco"))
SPARSE = {kept: Trial(f"sparseloco:codec=topk-{kept}") for kept in (64, 256, 512)}
DEMO = Trial("decoupled_momentum")
DEMO_FAR = Trial("decoupled_momentum", "decoupled_momentum-far", Length.FAR)
NEIGHBOURS = Trial("decentralized_adam", "ddp")
ACCUMULATED = Trial("decentralized_adam:inner=accum_adamw", "ddp")
DDP_SLOW, NEIGHBOURS_SLOW = (
    replace(one, net="lan", links=(1.0, 1.0, 1.0, 0.25)) for one in (DDP, NEIGHBOURS)
)
DENSE = Trial(
    "diloco:codec=none:outer_lr=1:outer_momentum=0",
    "sparseloco",
)
CLEAN = Trial("diloco", length=Length.HOSTILE, peers=8)
TWO = Trial("diloco", "diloco-far", Length.FAR, 2)


def _piped(settings: str = "") -> Trial:
    """A step of two windows four times, of which three are under way: none is a step old."""
    words = f"diloco:pipeline=3x2:micro_batch=2:slots=3{settings}"
    return Trial(words, "diloco-far", Length.FAR, 2)


PIPED, FIXED = _piped(), _piped(":routes=fixed")
CHURN = _piped(":death_s=20")
QUICK_ROUNDS, QUICK_CHURN = replace(PIPED, net="fibre"), replace(CHURN, net="fibre")
OWN_TEXT, OWN_TEXT_FIXED = (
    replace(one, tuned="diloco", length=Length.SHORT, noniid=True) for one in (PIPED, FIXED)
)


def _own_text(words: str) -> Trial:
    """80 short rounds of 8 peers, each with text of its own."""
    return Trial(words, "diloco", Length.MERGE, 8, noniid=True)


def _in_part(words: str) -> Trial:
    """The same with rates for rounds of which half of the peers are left out."""
    return replace(_own_text(words), tuned=f"{words.partition(':')[0]}-part")


HALF, HALF_MOMENTUM, HALF_VARIATES = (
    _in_part(f"{words}:drop=0.5") for words in ("diloco", "fedavg_m", "scaffold_m")
)
ALL, ALL_MOMENTUM, ALL_VARIATES = map(_in_part, ("diloco:drop=0", "fedavg_m", "scaffold_m"))


_AVERAGING = "noloco:codec=int8:outer_lr=1:outer_momentum=0:pull=1"
"""A pair takes the mean of its weights, as gossip does."""

EVERY_ROUND = _own_text("diloco")
MERGED_ALONE = _own_text("local:last_merge=yes")
MERGED_LATE, MERGED_EARLY = (
    _own_text(f"{_AVERAGING}:last_merge=yes:budget=3:when={when}") for when in ("late", "early")
)


def _confirmed(words: str) -> Trial:
    return Trial(words, length=Length.CONFIRM)


def _attacked(attack: Attack, rule: str = "") -> Trial:
    words = f"diloco:robust={rule}" if rule else "diloco"
    return Trial(words, "diloco", Length.HOSTILE, 8, hostile=HOSTILE_PEERS, attack=attack)


# ---- figures of several runs of one seed


def _bytes_ratio(ddp: Run, other: Run) -> float:
    return ratio(ddp.result.bytes_up_per_peer, other.result.bytes_up_per_peer)


def _peak_in_fragments(whole: Run, parts: Run) -> float:
    peaks = ratio(whole.result.peak_bytes_per_step, parts.result.peak_bytes_per_step)
    return peaks / parts.plan.fragments


def _per_op_s(run: Run) -> float:
    return ratio(run.result.exchange_seconds, run.result.ops)


def _exchanges_waited_for(hidden: Run, plain: Run) -> float:
    """The last exchange of a run has no inner steps behind it: 1 is fully hidden."""
    return ratio(hidden.result.exchange_seconds, _per_op_s(plain))


def _growth(few: Run, *more: Run) -> float:
    return max(ratio(_per_op_s(run), _per_op_s(few)) for run in more)


def _growth_of_meetings(few: Run, *more: Run) -> float:
    return max(ratio(_per_meeting_s(run), _per_meeting_s(few)) for run in more)


def _per_meeting_s(run: Run) -> float:
    """Return the seconds of an exchange of one peer, where an op has only some of them."""
    meetings = run.result.bytes_up_per_peer / (4 * run.result.num_values)
    return ratio(run.result.exchange_seconds, meetings)


def _converged(run: Run) -> float:
    return ratio(run.result.replica_spread, max(p.replica_spread for p in run.result.curve))


def _bytes_per_value(run: Run) -> float:
    """Return the bytes of what a peer gives, once: a gather sends it to every other peer."""
    copies = (run.plan.peers - 1) * run.result.ops
    return ratio(run.result.bytes_up_per_peer, copies * run.result.num_values)


def _held_back(few: Run, many: Run) -> float:
    return ratio(few.result.held_back, many.result.held_back)


def _time_ratio(waiting: Run, dynamic: Run) -> float:
    return ratio(waiting.result.modelled_seconds, dynamic.result.modelled_seconds)


def _merged_by_best(run: Run) -> float:
    best = run.result.replica_loss
    return ratio(loss(run), math.inf if best is None else best)


def _worst(clean: Run, *attacked: Run) -> float:
    return max(ratio(loss(run), loss(clean)) for run in attacked)


def _best_rule(runs: Runs) -> Figure:
    """Return the figure of the rule whose mean over seeds of the worst attack is lowest."""
    clean, *attacked = runs
    width = len(Attack)
    figures = [
        of_each(_worst)([clean, *attacked[low : low + width]])
        for low in range(0, len(attacked), width)
    ]
    return min(figures, key=lambda figure: mean(figure.values))


def _apart(random: Run, fixed: Run) -> float:
    """Behind the first stage, where sources work themselves whatever the routes are."""
    return ratio(mean(random.result.stage_spreads[1:]), mean(fixed.result.stage_spreads[1:]))


# ---- the table


def _against_ddp() -> list[Shape]:
    wide = tuple(Trial(name, f"{name}-far", Length.FAR_ONCE, 8) for name in ("diloco", "ddp"))
    return [
        Shape("diloco-4", "diloco, 50 inner steps, int8: loss at most 1.02 of ddp's, 4 peers",
              (DILOCO_FAR, DDP_FAR), loss_ratio, loss_at_most(1.02), "80 rounds"),
        Shape("diloco-4-short", "diloco in 20 rounds: loss at most 1.02 of ddp's, 4 peers",
              (DILOCO, DDP), loss_ratio, loss_at_most(1.02), "a quarter of the steps"),
        Shape("diloco-8", "with 8 peers: at most 1.04",
              wide, loss_ratio, loss_at_most(1.04), "80 rounds, one seed"),
        Shape("diloco-bytes", "ddp sends at least 190 x the bytes of diloco, 4 peers",
              (DDP_FAR, DILOCO_FAR), of_each(_bytes_ratio), Bar(Sense.AT_LEAST, 190)),
        Shape("diloco-bytes-8", "the same with 8 peers",
              wide[::-1], of_each(_bytes_ratio), Bar(Sense.AT_LEAST, 190)),
        Shape("diloco-500", "500 inner steps, 8 rounds: loss at most 1.06 of ddp's",
              (DILOCO_500, DDP_FAR), loss_ratio, loss_at_most(1.06)),
        Shape("diloco-500-bytes", "ddp sends at least 1 900 x the bytes of it",
              (DDP_FAR, DILOCO_500), of_each(_bytes_ratio), Bar(Sense.AT_LEAST, 1900)),
    ]  # fmt: skip


def _codecs() -> list[Shape]:
    return [
        Shape("int8", "int8 against fp32 exchange: no difference beyond the spread over seeds",
              (DILOCO, FP32), loss_ratio_and_noise, Bar(Sense.WITHIN_SPREAD)),
        Shape("e3m0", "E3M0: loss at most 1.01 of fp32's",
              (Trial("diloco:codec=e3m0"), FP32), loss_ratio, loss_at_most(1.01)),
        Shape("two-bit-feedback", "2 bits with error feedback: at most 1.01 of fp32's",
              (FEEDBACK, FP32), loss_ratio, loss_at_most(1.01)),
        Shape("two-bit-plain", "2 bits without error feedback: worse than with it",
              (Trial("diloco:codec=two_bit"), FEEDBACK), loss_ratio, Bar(Sense.AT_LEAST)),
    ]  # fmt: skip


def _overlap() -> list[Shape]:
    one_step = Trial("streaming:codec=int8:fragments=1:delay_steps=1:mixing=0", "diloco")
    return [
        Shape("streaming", "streaming, 3 fragments, int8: loss at most 1.01 of diloco's",
              (STREAMING, DILOCO_51), loss_ratio, loss_at_most(1.01),
              "51 inner steps, a multiple of 3, in both"),
        Shape("streaming-peak", "its peak rate is diloco's by the number of fragments, to 15 %",
              (DILOCO_51, STREAMING), of_each(_peak_in_fragments),
              Bar(Sense.AT_LEAST, PEAK_SHARE),
              "fragments are whole layers: the largest is 37 % of the model"),
        Shape("overlap-1", "overlap of one inner step: loss no more than the spread above diloco's",
              (one_step, DILOCO), loss_ratio_and_noise, Bar(Sense.NO_WORSE)),
        Shape("eager", "eager: loss at most 1.04 of diloco's",
              (EAGER_FAR, DILOCO_FAR), loss_ratio, loss_at_most(1.04), "80 rounds"),
        Shape("eager-short", "eager in 20 rounds: loss at most 1.04 of diloco's",
              (EAGER, DILOCO), loss_ratio, loss_at_most(1.04), "a quarter of the steps"),
        Shape("eager-hidden", "only its last exchange, which no steps follow, is waited for",
              (EAGER, DILOCO), of_each(_exchanges_waited_for), Bar(Sense.AT_MOST, 1.01)),
        Shape("co2", "co2: loss at most 1.03 of diloco's",
              (CO2_FAR, DILOCO_FAR), loss_ratio, loss_at_most(1.03), "80 rounds, rates of 20"),
        Shape("co2-short", "co2 in 20 rounds: loss at most 1.03 of diloco's",
              (CO2, DILOCO), loss_ratio, loss_at_most(1.03), "a quarter of the steps"),
        Shape("co2-hidden", "only its last exchange, which no steps follow, is waited for",
              (CO2, DILOCO), of_each(_exchanges_waited_for), Bar(Sense.AT_MOST, 1.01)),
        Shape("co2-eager", "co2: loss no more than eager's",
              (CO2, EAGER), loss_ratio, Bar(Sense.AT_MOST), "20 rounds"),
        Shape("co2-penalty", "co2 without its penalty, at the same rates: worse",
              (Trial("co2:penalty=0", "co2"), CO2), loss_ratio, Bar(Sense.AT_LEAST), "20 rounds"),
        Shape("delayed", "plain delay of one round: worse than eager",
              (Trial("delayed"), EAGER), loss_ratio, Bar(Sense.AT_LEAST), "20 rounds"),
    ]  # fmt: skip


def _pairs_and_sparse() -> list[Shape]:
    timed = tuple(Trial("noloco", length=Length.TIMING, peers=n) for n in (4, 8, 16))
    met = tuple(Trial("gossip", "noloco", length=Length.TIMING, peers=n) for n in (4, 8, 16))
    all_timed = tuple(Trial("diloco", length=Length.TIMING, peers=n) for n in (4, 8, 16))
    return [
        Shape("noloco", "noloco: loss at most 1.03 of diloco's",
              (NOLOCO, DILOCO), loss_ratio, loss_at_most(1.03)),
        Shape("noloco-time", "its time per exchange with 8 and 16 peers: that with 4",
              timed, of_each(_growth), Bar(Sense.AT_MOST, 1.001)),
        Shape("diloco-time", "beside it, diloco's grows",
              all_timed, of_each(_growth), Bar(Sense.AT_LEAST, 1.001)),
        Shape("gossip", "gossip of 8: loss at most 1.03 of noloco's",
              (GOSSIP_8, NOLOCO_8), loss_ratio, loss_at_most(1.03),
              "it has no outer rates: the inner one is noloco's"),
        Shape("gossip-time", "its time per exchange of a peer with 8 and 16 peers: that with 4",
              met, of_each(_growth_of_meetings), Bar(Sense.AT_MOST, 1.001)),
        Shape("demo", "decoupled momentum, 64 of 4096: loss at most 1.02 of ddp's",
              (DEMO, DDP), loss_ratio, loss_at_most(1.02), "1 000 steps"),
        Shape("demo-far", "the same in 4 000 steps: at most 1.02",
              (DEMO_FAR, DDP_FAR), loss_ratio, loss_at_most(1.02)),
        Shape("demo-bytes", "ddp sends at least 50 x the bytes of it, 4 peers",
              (DDP, DEMO), of_each(_bytes_ratio), Bar(Sense.AT_LEAST, 50)),
        Shape("demo-late", "its overlap of one step: loss at most 1.01 of without",
              (DEMO, Trial("decoupled_momentum:overlap=false", "decoupled_momentum")),
              loss_ratio, loss_at_most(1.01), "1 000 steps"),
        Shape("neighbours", "decentralized_adam: loss at most 1.02 of ddp's",
              (NEIGHBOURS, DDP), loss_ratio, loss_at_most(1.02), "at ddp's rate"),
        Shape("neighbours-accum", "with accum_adamw of 4 steps: at most 1.02",
              (ACCUMULATED, DDP), loss_ratio, loss_at_most(1.02), "at ddp's rate"),
        Shape("neighbours-ring", "on a ring: at most 1.02",
              (Trial("decentralized_adam:graph=ring", "ddp"), DDP), loss_ratio,
              loss_at_most(1.02), "at ddp's rate"),
        Shape("neighbours-time", "one link of four a quarter of the others', lan: at least 1.5 x "
              "faster than ddp, whose slices follow the rates",
              (DDP_SLOW, NEIGHBOURS_SLOW), of_each(_time_ratio), Bar(Sense.AT_LEAST, 1.5)),
        Shape("noloco-converges", "its replicas end at most half as far apart as they ever were",
              (NOLOCO,), of_each(_converged), Bar(Sense.AT_MOST, 0.5)),
        Shape("sparse-bytes", "sparseloco, 64 of 4096: at most 0.03 bytes per value given",
              (SPARSE[64],), of_each(_bytes_per_value), Bar(Sense.AT_MOST, 0.03),
              "of one copy: a gather sends it to every other peer"),
        Shape("sparse-256", "256 of 4096: loss at most 1.03 of diloco's",
              (SPARSE[256], DILOCO), loss_ratio, loss_at_most(1.03), "20 rounds"),
        Shape("sparse-512", "512 of 4096: at most 1.03",
              (SPARSE[512], DILOCO), loss_ratio, loss_at_most(1.03), "20 rounds"),
        Shape("sparse-64", "64 of 4096: in a run of 20 rounds more than 1.03 of diloco's",
              (SPARSE[64], DILOCO), loss_ratio, Bar(Sense.AT_LEAST, 1.03)),
        Shape("sparse-waits", "why: at the end more still waits with 64 than with 512",
              (SPARSE[64], SPARSE[512]), of_each(_held_back), Bar(Sense.AT_LEAST)),
        Shape("sparse-dense", "what is left at 512: at most 1.03 of the same without a codec",
              (SPARSE[512], DENSE), loss_ratio, loss_at_most(1.03),
              "rate 1, no momentum: what it lacks beside diloco is the outer momentum"),
    ]  # fmt: skip


def _last_merge() -> list[Shape]:
    drawn = "partners are drawn, where the paper has a graph"
    return [
        Shape("merge-below", "own text, 8 peers, 3 exchanges late and a last merge: its loss is "
              "below every replica's",
              (MERGED_LATE,), of_each(_merged_by_best), Bar(Sense.AT_MOST), drawn),
        Shape("merge-loss", "and at most 1.05 of diloco's that exchanges in every round",
              (MERGED_LATE, EVERY_ROUND), loss_ratio, loss_at_most(1.05), "80 short rounds"),
        Shape("merge-bytes", "which sends at least 10 x the bytes",
              (EVERY_ROUND, MERGED_LATE), of_each(_bytes_ratio), Bar(Sense.AT_LEAST, 10)),
        Shape("merge-late", "3 exchanges late: loss below that of 3 early",
              (MERGED_LATE, MERGED_EARLY), loss_ratio, Bar(Sense.AT_MOST), drawn),
        Shape("merge-alone-below", "nothing but a last merge: its loss is below every replica's",
              (MERGED_ALONE,), of_each(_merged_by_best), Bar(Sense.AT_MOST)),
        Shape("merge-alone", "and at most 1.05 of diloco's",
              (MERGED_ALONE, EVERY_ROUND), loss_ratio, loss_at_most(1.05), "80 short rounds"),
    ]  # fmt: skip


def _momenta() -> list[Shape]:
    half = "own text, half of 8 peers left out of each of 80 rounds"
    return [
        Shape("fedavg_m", f"{half}: fedavg_m's loss is at most 0.99 of diloco's",
              (HALF_MOMENTUM, HALF), loss_ratio, loss_at_most(0.99)),
        Shape("scaffold_m", "and scaffold_m's at most 0.98 of it",
              (HALF_VARIATES, HALF), loss_ratio, loss_at_most(0.98)),
        Shape("scaffold_m-momentum", "without momentum scaffold_m is worse, at the same rates",
              (_in_part("scaffold_m:drop=0.5:outer_momentum=0"), HALF_VARIATES),
              loss_ratio, Bar(Sense.AT_LEAST)),
        Shape("fedavg_m-all", "everybody in every round: fedavg_m at most 1.00 of diloco's",
              (ALL_MOMENTUM, ALL), loss_ratio, loss_at_most(1.00), "rates of the halves"),
        Shape("scaffold_m-all", "and scaffold_m at most 1.00",
              (ALL_VARIATES, ALL), loss_ratio, loss_at_most(1.00), "rates of the halves"),
    ]  # fmt: skip


def _other_swarms() -> list[Shape]:
    muon = Trial("diloco:inner=muon", "diloco-muon")
    accumulated = Trial("diloco:inner=accum_adamw", "diloco", peers=8)
    waiting = Trial("delayed_nesterov", "diloco", speeds=UNEQUAL)
    dynamic = Trial("delayed_nesterov:pace=dynamic", "diloco", speeds=UNEQUAL)
    return [
        Shape("accum-adamw", "accum_adamw of 8 steps, 8 peers: loss no more than adamw's",
              (accumulated, replace(accumulated, words="diloco")), loss_ratio, Bar(Sense.AT_MOST)),
        Shape("muon", "muon + diloco: loss below adamw + diloco",
              (muon, DILOCO), loss_ratio, Bar(Sense.AT_MOST)),
        Shape("speeds-time", "speeds 1:1:0.5:0.25: dynamic local updates at least 1.5 x faster",
              (waiting, dynamic), of_each(_time_ratio), Bar(Sense.AT_LEAST, 1.5)),
        Shape("speeds-loss", "and loss at most 1.02 of waiting's",
              (dynamic, waiting), loss_ratio, loss_at_most(1.02)),
        Shape("drop", "30 % of contributions lost: loss at most 1.04 of the clean run's",
              (Trial("diloco:drop=0.3"), DILOCO), loss_ratio, loss_at_most(1.04)),
    ]  # fmt: skip


def _asynchronous() -> list[Shape]:
    found = []
    for name, speeds in (("", UNEQUAL), ("-2", TEN_TIMES)):
        peers, said = len(speeds), ":".join(f"{speed:g}" for speed in speeds)
        waiting, alike, apart, dynamic = (
            Trial(words, tuned, peers=peers, speeds=speeds)
            for words, tuned in (
                ("diloco", "diloco"),
                (ASYNCHRONOUS, "asynchronous"),
                ("asynchronous:pace=apart", "asynchronous"),
                ("delayed_nesterov:pace=dynamic", "diloco"),
            )
        )
        found += [
            Shape(
                f"async-time{name}",
                f"speeds {said}: asynchronous: at least 1.8 x the tokens a second of waiting",
                (waiting, alike),
                of_each(_time_ratio),
                Bar(Sense.AT_LEAST, 1.8),
            ),
            Shape(
                f"async-time-fibre{name}",
                "the same over fibre, where an exchange is short",
                (replace(waiting, net="fibre"), replace(alike, net="fibre")),
                of_each(_time_ratio),
                Bar(Sense.AT_LEAST, 1.8),
            ),
            Shape(
                f"async-loss{name}",
                "and loss at equal tokens at most 1.03 of diloco's",
                (alike, waiting),
                loss_ratio,
                loss_at_most(1.03),
            ),
            Shape(
                f"async-apart-time{name}",
                "with all steps of a slow peer's round: as fast",
                (waiting, apart),
                of_each(_time_ratio),
                Bar(Sense.AT_LEAST, 1.8),
            ),
            Shape(
                f"async-apart-loss{name}",
                "and its loss",
                (apart, waiting),
                loss_ratio,
                loss_at_most(1.03),
            ),
            Shape(
                f"async-beside{name}",
                "dynamic local updates beside it: as fast",
                (waiting, dynamic),
                of_each(_time_ratio),
                Bar(Sense.AT_LEAST, 1.8),
            ),
            Shape(
                f"async-beside-loss{name}",
                "and their loss",
                (dynamic, waiting),
                loss_ratio,
                loss_at_most(1.03),
            ),
        ]
    waiting = Trial("diloco", "diloco", speeds=UNEQUAL)
    for name, setting in (("longer", "least_steps=25"), ("fuller", "buffer=3")):
        tried = Trial(f"{ASYNCHRONOUS}:{setting}", "asynchronous", speeds=UNEQUAL)
        found += [
            Shape(
                f"async-{name}-time",
                f"asynchronous with {setting}: as fast",
                (waiting, tried),
                of_each(_time_ratio),
                Bar(Sense.AT_LEAST, 1.8),
            ),
            Shape(
                f"async-{name}-loss",
                "and its loss",
                (tried, waiting),
                loss_ratio,
                loss_at_most(1.03),
            ),
        ]
    return found


def _hostile() -> list[Shape]:
    refused = "NaN is refused before any sum: such a peer only gives nothing"
    plain = [
        Shape(f"plain-{attack.value}",
              f"2 of 8 hostile, {attack.value}: the plain mean ends above 1.10 of the clean run",
              (_attacked(attack), CLEAN), loss_ratio, Bar(Sense.AT_LEAST, 1.10),
              refused if attack is Attack.NAN else "")
        for attack in Attack
    ]  # fmt: skip
    ruled = [
        Shape(rule, f"{rule}: at most 1.10 of the clean run under the worst of the attacks",
              (CLEAN, *(_attacked(attack, rule) for attack in Attack)),
              of_each(_worst), loss_at_most(1.10))
        for rule in RULES
    ]  # fmt: skip
    everything = (CLEAN, *(_attacked(attack, rule) for rule in RULES for attack in Attack))
    best = Shape("best-rule", "the best rule: at most 1.04", everything, _best_rule,
                 loss_at_most(1.04))  # fmt: skip
    return [*plain, *ruled, best]


def _pipelines() -> list[Shape]:
    length = "80 rounds"
    return [
        Shape("pipeline", "3 stages x 2 peers, free, int8: loss at most 1.02 of two replicas'",
              (PIPED, TWO), loss_ratio, loss_at_most(1.02), length),
        Shape("pipeline-int8", "int8 between stages: loss at most 1.01 of float32's",
              (PIPED, _piped(":activations=none")), loss_ratio, loss_at_most(1.01), length),
        Shape("pipeline-subspace", "half of the width between stages: loss at most 1.03 of "
              "float32's", (_piped(":activations=subspace-32"), _piped(":activations=none")),
              loss_ratio, loss_at_most(1.03), length),
        Shape("pipeline-subspace-16", "a quarter of it",
              (_piped(":activations=subspace-16"), _piped(":activations=none")),
              loss_ratio, loss_at_most(1.03), length),
        Shape("pipeline-routes", "peers of a stage that is no source's at most 0.8 as far apart as "
              "with fixed routes, where each source has text of its own",
              (OWN_TEXT, OWN_TEXT_FIXED), of_each(_apart), Bar(Sense.AT_MOST, 0.8),
              "when a round ends"),
        Shape("pipeline-routes-own-loss", "and loss no more than the spread above fixed routes'",
              (OWN_TEXT, OWN_TEXT_FIXED), loss_ratio_and_noise, Bar(Sense.NO_WORSE)),
        Shape("pipeline-routes-alike", "the same where all sources have text of one kind",
              (PIPED, FIXED), of_each(_apart), Bar(Sense.AT_MOST, 0.8), "when a round ends"),
        Shape("pipeline-churn", "a peer dies every 20 s, as three rounds take, and returns: loss "
              "at most 1.02 of without",
              (QUICK_CHURN, QUICK_ROUNDS), loss_ratio, loss_at_most(1.02), length),
        Shape("pipeline-churn-slow", "the same with rounds that last longer than that",
              (CHURN, PIPED), loss_ratio, loss_at_most(1.02), length),
        Shape("pipeline-routes-loss", "and loss no more than the spread above that of fixed routes",
              (PIPED, FIXED), loss_ratio_and_noise, Bar(Sense.NO_WORSE), length),
    ]  # fmt: skip


def _confirmations() -> list[Shape]:
    size = "0.85 M parameters, one seed"
    return [
        Shape("confirm-diloco", f"{size}: diloco at most 1.02 of ddp",
              (_confirmed("diloco"), _confirmed("ddp")), loss_ratio, loss_at_most(1.02)),
        Shape("confirm-noloco", f"{size}: noloco at most 1.03 of diloco",
              (_confirmed("noloco"), _confirmed("diloco")), loss_ratio, loss_at_most(1.03)),
        Shape("confirm-streaming", f"{size}: streaming at most 1.01 of diloco",
              (_confirmed("streaming:codec=int8"), _confirmed("diloco")), loss_ratio,
              loss_at_most(1.01)),
    ]  # fmt: skip


SHAPES: tuple[Shape, ...] = (
    *_against_ddp(),
    *_codecs(),
    *_overlap(),
    *_pairs_and_sparse(),
    *_last_merge(),
    *_momenta(),
    *_other_swarms(),
    *_asynchronous(),
    *_hostile(),
    *_pipelines(),
    *_confirmations(),
)
