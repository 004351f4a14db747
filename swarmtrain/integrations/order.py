"""An order of one's own through data that all peers have.

Copies of one script have one seed. Without more they would all read the same examples in the
same order, and their mean would be worth no more than one of them. So a shuffled loader is seeded
with this peer's own seed besides. That shares nothing out: each peer meets each example once per
pass, at another time than the others. Not here: loaders that do not shuffle, whose peers bring data
of their own.
"""

from typing import Any

import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from swarmtrain.peer.hook_log import logger

_SEEDS = 2**63
"""Generators take seeds below 2**64, and some libraries add a small number to them."""


def shuffle_apart(loader: Any, seed: int) -> bool:
    """Give a loader that has not begun an order of its own, from its seed and this one; say so in
    the log where it cannot be done.

    Args:
        loader: a DataLoader, also as accelerate prepares it.
        seed: `Swarm.seed`; 0, which stands for no run, changes nothing.

    Returns:
        True if the order was changed.
    """
    if not seed:
        return False
    sampler = _sampler_of(loader)
    if isinstance(sampler, DistributedSampler):
        sampler.seed = (sampler.seed + seed) % _SEEDS
    elif not isinstance(sampler, RandomSampler):
        logger.warning(
            "This loader is not shuffled, or in a way that is not known here: where peers have the "
            "same data, all read them in the same order. Bring data of your own, or order them by "
            "swarm.seed."
        )
        return False
    elif hasattr(sampler, "initial_seed"):  # accelerate's, which seeds anew for every pass
        sampler.initial_seed = (sampler.initial_seed + seed) % _SEEDS
    elif sampler.generator is None:
        sampler.generator = torch.Generator()
        sampler.generator.manual_seed((torch.initial_seed() + seed) % _SEEDS)
    else:
        sampler.generator.manual_seed((sampler.generator.initial_seed() + seed) % _SEEDS)
    return True


def _sampler_of(loader: Any) -> Any:
    """The innermost sampler: of examples, not of batches."""
    batches = getattr(loader, "batch_sampler", None)
    sampler = batches if batches is not None else getattr(loader, "sampler", None)
    # Of accelerate a sampler of batches that holds the real one, and shares its batches out.
    while isinstance(sampler, BatchSampler):
        inner = getattr(sampler, "batch_sampler", None)
        sampler = inner if inner is not None else getattr(sampler, "sampler", None)
    return sampler
