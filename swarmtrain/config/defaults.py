"""What a run file means where it says nothing, for each strategy.

The defaults in `config` are diloco's. A run file that changes only `outer.strategy` is to run that
strategy as its paper has it, not with another's rates. `swarmtrain compare` exchanges in the same
way (a test holds both together); its rates are tuned for its own short runs. Not here: which values
fit together.
"""

from collections.abc import Mapping

from swarmtrain.config.settings import Setting

PAIR = 2
"""Peers that a pair op needs: one alone has nobody to exchange with."""

_DEFAULTS: Mapping[str, Mapping[str, Mapping[str, Setting]]] = {
    # Parts one after the other under the inner steps, in 4 bits (arXiv 2501.18512).
    "streaming": {
        "outer": {"fragments": 2, "delay_steps": 1, "mixing": 0.5},
        "exchange": {"codec": "e3m0"},
    },
    # A step made of old differences wants at most half of the rate (arXiv 2502.12996).
    "delayed": {"outer": {"lr": 0.5, "momentum": 0.0}},
    "eager": {"outer": {"lr": 1.0, "momentum": 0.0}},
    # Error feedback is in the place of momentum; 64 of 4096 values (arXiv 2508.15706).
    "sparseloco": {
        "outer": {"lr": 1.0, "momentum": 0.0},
        "exchange": {"codec": "topk", "block": 4096},
    },
    # The paper's rates (arXiv 2506.10911). Values travel as they are, because a codec's loss in
    # an anchor is noise that nothing takes back; and nobody waits for himself.
    "noloco": {
        "outer": {"lr": 0.7, "momentum": 0.5},
        "exchange": {"codec": "none", "min_contributors": PAIR, "start_peers": PAIR},
    },
}


_OF_CUSTOM: Mapping[str, Mapping[str, Mapping[str, Setting]]] = {
    # Nothing is known of the layers of somebody else's model.
    "streaming": {"outer": {"fragments": 1, "delay_steps": 1, "mixing": 0.5}},
}


def defaults_of(strategy: str, *, custom: bool = False) -> Mapping[str, Mapping[str, Setting]]:
    """By section: what is meant where a run file of this strategy says nothing. What is not here
    is as `config` has it.

    Args:
        strategy: its name.
        custom: whether the model is brought by a Python hook.
    """
    return {**_DEFAULTS.get(strategy, {}), **(_OF_CUSTOM.get(strategy, {}) if custom else {})}
