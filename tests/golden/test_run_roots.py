"""The state roots of whole tiny runs, held against those that were made once.

A change of the house that means to change no bit is checked by this: every strategy, codecs that
lose nothing, little and much, a death, a newcomer, a return of everybody. Who changes a bit on
purpose makes the roots anew, in a commit of its own that says why:

    python -m tests.golden.test_run_roots

Weights and slopes are small binary fractions, so nothing but the exchange decides the bits.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from swarmtrain.config.settings import RunConfig
from tests.peer.crowd import Crowd, Member, crowd_of
from tests.peer.test_strategy_sessions import config_of

KEPT = Path(__file__).parent / "run_roots.json"
ROUNDS = 6

Story = Callable[[Crowd], list[Member]]


def _add(crowd: Crowd, number: int) -> Member:
    member = crowd.add(number)
    toy = member.toy
    places = torch.arange(toy.layout.padded, dtype=torch.float32)
    toy.slope = ((places * (2 * number + 1)) % 29 - 14) / 16
    toy.slope[toy.layout.num_values :] = 0
    toy.write_weights(((places * 5) % 31 - 15) / 64)
    return member


def _quiet(crowd: Crowd) -> list[Member]:
    members = [_add(crowd, number) for number in (1, 2, 3)]
    crowd.run()
    return members


def _death(crowd: Crowd) -> list[Member]:
    members = [_add(crowd, number) for number in (1, 2, 3)]
    crowd.run(until=lambda: members[0].driver.op >= 2)
    crowd.kill(members.pop())
    crowd.run()
    return members


def _newcomer(crowd: Crowd) -> list[Member]:
    members = [_add(crowd, number) for number in (1, 2, 3)]
    crowd.run(until=lambda: members[0].driver.op >= 1)
    members.append(_add(crowd, 4))
    crowd.run()
    return members


def _return(crowd: Crowd) -> list[Member]:
    members = [_add(crowd, number) for number in (1, 2, 3)]
    crowd.run(until=lambda: members[0].driver.op >= 2)
    for one in members:
        one.session.request_stop()
    crowd.run()
    crowd.close()
    crowd.start_coordinator()
    return _quiet(crowd)


def _runs() -> dict[str, tuple[RunConfig, Story]]:
    def of(name: str, codec: str = "") -> RunConfig:
        return config_of(name, rounds=ROUNDS, codec=codec)

    by_codec = {
        f"diloco {codec}": (of("diloco", codec), _quiet)
        for codec in ("int8", "int4", "none", "e3m0", "two_bit", "sign", "topk-4")
    }
    others = (
        "ddp", "streaming", "delayed", "eager", "co2", "delayed_nesterov", "noloco", "sparseloco",
        "one_byte", "local", "asynchronous", "fedavg_m", "scaffold_m", "decoupled_momentum",
        "gossip", "decentralized_adam",
    )  # fmt: skip
    by_strategy = {name: (of(name), _quiet) for name in others}
    churn = {
        f"diloco, {words}": (of("diloco", "int8"), story)
        for words, story in (("a death", _death), ("a newcomer", _newcomer), ("a return", _return))
    }
    return by_codec | by_strategy | churn


def roots_of(config: RunConfig, story: Story, place: Path) -> dict[str, dict[str, str]]:
    """Per peer the beginning of its state root after every round, by its number and the round."""
    with crowd_of(config, place) as crowd:
        members = story(crowd)
        return {
            str(one.peer[0]): {str(op): root.hex()[:16] for op, root in sorted(one.roots.items())}
            for one in members
        }


@pytest.mark.parametrize("name", sorted(_runs()))
def test_a_run_ends_with_the_roots_that_it_always_had(tmp_path: Path, name: str):
    kept = json.loads(KEPT.read_text())
    assert roots_of(*_runs()[name], tmp_path) == kept[name]


def test_nothing_is_kept_that_is_not_run():
    assert json.loads(KEPT.read_text()).keys() == _runs().keys()


def _make() -> None:
    made = {}
    for name, run in _runs().items():
        with tempfile.TemporaryDirectory() as place:
            made[name] = roots_of(*run, Path(place))
        print(name, file=sys.stderr)
    KEPT.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    _make()
