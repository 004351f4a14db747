"""A loop with accelerate as a peer of a run.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with join(accelerator, model, optimizer, loader) as swarm:  # instead of swarmtrain.join
        ...  # your own loop, with accelerator.backward and accelerator.accumulate

`swarmtrain.join` takes prepared models and optimizers, too. This one knows besides how many samples
a step has, and shuffles the loader by this peer's seed.
"""

from typing import Any

from torch import nn

from swarmtrain.hook.api import join as join_loop
from swarmtrain.hook.swarm import Swarm
from swarmtrain.integrations.extras import missing
from swarmtrain.integrations.order import shuffle_apart

try:
    from accelerate import Accelerator
except ImportError as error:
    raise missing("accelerate", "hf", error) from error


def join(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    loader: Any = None,
    invite: str | None = None,
    **options: Any,
) -> Swarm:
    """Become a peer of a run with what `accelerator.prepare` has returned.

    Args:
        accelerator: accelerator of the loop.
        model: prepared; the model inside of what accelerate has put around it is exchanged.
        optimizer: prepared; of accumulated steps the last one counts, skipped ones do not.
        loader: prepared, of the training data; it says how many samples a step has, and gets an
            order of this peer's own. None leaves both to the caller.
        invite: ``swarm://host:port/run#secret``; None reads SWARMTRAIN_INVITE.
        options: options of `swarmtrain.join`.

    Raises:
        UserError: as of `swarmtrain.join`.
    """
    inside = accelerator.unwrap_model(model, keep_torch_compile=False)
    batch = getattr(loader, "total_batch_size", None)
    if isinstance(batch, int):
        samples = batch * accelerator.gradient_accumulation_steps
        options = {"samples_per_step": samples, **options}
    swarm = join_loop(inside, optimizer, invite, **options)
    if loader is not None:
        shuffle_apart(loader, swarm.seed)
    return swarm
