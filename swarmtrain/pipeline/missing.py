"""Model without some stages: what is left where those between the first and the last are missing.

What a layer adds to its input is left out with it, so the model without it is one of fewer layers.
Where routes leave stages out the others have learned to do without them.
"""

from collections.abc import Mapping, Sequence

import msgspec
from torch import Tensor

from swarmtrain.config.settings import RunConfig
from swarmtrain.config.stages import stage_cut


def without(
    config: RunConfig, weights: Mapping[str, Tensor], stages: Sequence[int]
) -> tuple[RunConfig, dict[str, Tensor]]:
    """The model that is left: its layers close up.

    Args:
        config: the run file.
        weights: by parameter name; those of these stages may be there or not.
        stages: stages that are left out.
    """
    places = {place for stage in stages for place in stage_cut(config)[stage]}
    gone = {place - 1 for place in places}  # the embedding is the first block, layers follow
    kept = [layer for layer in range(config.model.layers) if layer not in gone]
    renamed = {f"blocks.{old}": f"blocks.{new}" for new, old in enumerate(kept)}
    left: dict[str, Tensor] = {}
    for name, values in weights.items():
        word, *rest = name.split(".", 2)
        block = f"{word}.{rest[0]}" if word == "blocks" else word
        if word != "blocks":
            left[name] = values
        elif block in renamed:
            left[f"{renamed[block]}.{rest[1]}"] = values
    model = msgspec.structs.replace(config.model, layers=len(kept))
    return msgspec.structs.replace(config, model=model), left
