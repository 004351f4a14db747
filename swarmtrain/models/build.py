"""The model of a run file with fresh weights, of whichever kind it is.

Each kind has a module here that makes it; its sizes, and all else that is known of it without
torch, stand in `config.built_in`. All take token ids, (B, T) int64, and give logits, (B, T, V),
where V is `vocabulary_of`; `context` is the longest T.

Not here: training, and the run's own weights, which come from its peers.
"""

from torch import nn

from swarmtrain.config.built_in import vocabulary_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.models import byte_transformer

__all__ = ["build_model", "vocabulary_of"]


def build_model(config: RunConfig, seed: int) -> nn.Module:
    """Make the model that a run file describes: the same bits for the same seed and torch.

    The global random state is left as it was. A run does not rely on the seed: its op 0 is the
    bytes that the first peer offers.

    Raises:
        ValueError: peers bring the model, or its sizes do not fit together.
    """
    return byte_transformer.build_model(config.model, seed)
