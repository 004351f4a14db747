"""A run that looks after itself: its peers' learning rate is wrong for a while, the loss leaps, and
the run goes back to what was good and on from there. `why` tells."""

import json

import pytest
import torch
from e2e_rig import answer, place
from test_hook_in_run import RUN, Loop

pytestmark = pytest.mark.timeout(400)

GUARD = """
[guard]
spike = 3.0
window = 8
[checkpoint]
every_rounds = 1
"""
POISONED_ROUND = 7


class Poisoned(Loop):
    """Its learning rate is wrong for the steps of one round, once."""

    def __init__(self, invite, state_dir, seed):
        super().__init__(invite, state_dir, seed)
        self.was_poisoned = False

    def step(self):
        is_now = self.swarm.round == POISONED_ROUND and not self.was_poisoned
        for group in self.optimizer.param_groups:
            group["lr"] = 100.0 if is_now else 1e-2
        super().step()
        self.was_poisoned |= self.swarm.round > POISONED_ROUND


def test_a_leap_of_the_loss_takes_the_run_back_and_on(tmp_path):
    with place(tmp_path) as here:
        text = RUN.format(name="guarded", rounds=14, start=2) + GUARD
        # Both must say that the loss leapt. Rounds are short: one may miss the poisoned one and say
        # so a round or two later: the window is long enough for what was usual to stay usual.
        text = text.replace("min_contributors = 1", "min_contributors = 2")
        text = text.replace("wait_ready_s = 10.0", "wait_ready_s = 60.0")
        up = here.up(here.run_file(text))
        loops = [Poisoned(up.invite, tmp_path / name, seed) for seed, name in enumerate("ab")]
        for loop in loops:
            loop.start()
        for loop in loops:
            loop.ended()
        assert up.running.end() == 0
        assert loops[0].swarm.state_root == loops[1].swarm.state_root
        weights = torch.cat([p.detach().flatten().float() for p in loops[0].kept])
        assert float(weights.abs().max()) < 10.0, "the leap is still in the model"
        told = [
            json.loads(answer("why", number, "--json", "--state-dir", tmp_path / "coordinator"))
            for number in range(POISONED_ROUND, POISONED_ROUND + 3)
        ]
        story = " ".join(line for one in told for line in one["story"])
        print(story)
        assert "A REWIND went back to round" in story
        assert "times the usual" in story
        assert "In training they lost, by their own word: " in story
