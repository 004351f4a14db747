"""The model of a run file with fresh weights, of whichever kind it is.

Each kind has a module here that makes it; what is known of it without torch stands in
`config.built_in`. All take token ids, (B, T) int64, and give logits, (B, T, V), where V is
`vocabulary_of`.

Not here: training, and the run's own weights, which come from its peers.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

import psutil
from torch import Tensor, nn

from swarmtrain.config.built_in import (
    built_in_parameters,
    counted,
    num_values_of,
    vocabulary_of,
)
from swarmtrain.config.models import is_module
from swarmtrain.config.settings import ModelSection, RunConfig
from swarmtrain.console.units import human_bytes
from swarmtrain.foundation.errors import UserError, cleaned
from swarmtrain.models import byte_transformer, foreign, hf, transformer
from swarmtrain.models.weights_file import Shapes, differences

_WRONG_SHOWN = 3


@dataclass(frozen=True, slots=True)
class CountedKind:
    """A kind of model whose parts, embedding, blocks, norm and head, can be made apart.

    Attributes:
        build: (section, seed) -> the model with fresh weights.
        sketch: the model as its class makes it, for the meta device.
        values: (section, seed, names wanted) -> name and fresh values of these, perhaps of others
            too, one at a time.
        tables: the two that each block is called with beside what comes in, a row per position.
    """

    build: Callable[[ModelSection, int], nn.Module]
    sketch: Callable[[ModelSection], nn.Module]
    values: Callable[[ModelSection, int, frozenset[str]], Iterator[tuple[str, Tensor]]]
    tables: Callable[[ModelSection], tuple[Tensor, Tensor]]


def build_model(
    config: RunConfig, seed: int, *, modules: frozenset[str] = frozenset()
) -> nn.Module:
    """Make the model that a run file describes: the same bits for the same seed and torch.

    The global random state is left as it was. A run does not rely on the seed: its op 0 is the
    bytes that the first peer offers.

    Args:
        config: the run file, which a stranger may have written.
        seed: seed of the weights.
        modules: functions of installed packages that may be called, ``pkg.name``; beside those in
            SWARMTRAIN_MODULE.

    Raises:
        ValueError: peers bring the model, or its sizes do not fit together.
        UserError: SWT-E102, E621 and E623, a library or package cannot make it; E622, it is larger
            than this machine's memory.
    """
    section = config.model
    _refuse_too_large(config)
    if section.kind == "huggingface":
        model = hf.build_model(section, seed)
    elif is_module(section.kind):
        model = foreign.build_model(section, vocabulary_of(config), seed, modules)
    else:
        return counted_kind(section).build(section, seed)
    foreign.check(model, vocabulary_of(config), section)
    return model


def check_shapes(config: RunConfig, found: Shapes) -> None:
    """Refuse weights that are not those of the config's model, before there is room for either.
    Shapes are not known before of a model that peers or packages bring.

    Args:
        config: may be a stranger's, as the weights may.
        found: shapes of the weights, by parameter name.

    Raises:
        UserError: SWT-E451, they are of another model; and as `build_model`.
    """
    if config.model.is_counted:
        wanted: Shapes = {name: shape for name, shape, _ in built_in_parameters(config.model)}
    elif config.model.kind == "huggingface":
        wanted = hf.shapes_of(config.model, found)
    else:
        return
    if wrong := list(islice(differences(wanted, found), _WRONG_SHOWN)):
        raise of_another_model(config.run.name, wrong)


def of_another_model(name: str, wrong: Iterable[str]) -> UserError:
    """The error for weights that do not fit."""
    return UserError(
        "SWT-E451",
        f"The weights of {name} are of another model: {cleaned('; '.join(wrong))}.",
        "They were made with other sizes, or by another version of swarmtrain.",
        "Use the version that trained it.",
    )


def _refuse_too_large(config: RunConfig) -> None:
    """Before memory is asked for: a system that promises it ends the process later."""
    known, total = counted(config), psutil.virtual_memory().total
    num_bytes = 0 if known is None else 4 * num_values_of(built_in_parameters(known.model))
    if num_bytes > total:
        raise UserError(
            "SWT-E622",
            f"The weights of this run's model are about {human_bytes(num_bytes)}, and this machine "
            f"has {human_bytes(total)} of memory.",
            "Training takes several times that.",
            "Join on a larger machine; or ask the organiser for a run whose model is in stages.",
        )


def counted_kind(section: ModelSection) -> CountedKind:
    """The kind of a section whose parameters are known from its sizes.

    Raises:
        ValueError: it is another one.
    """
    if section.kind not in _COUNTED:
        raise ValueError(
            f"[model] kind {section.kind!r} is not built in: {', '.join(_COUNTED)} are. A custom "
            "one is brought by a Python hook (swarmtrain.join)"
        )
    return _COUNTED[section.kind]


_COUNTED: Mapping[str, CountedKind] = MappingProxyType(
    {
        "byte-transformer": CountedKind(
            byte_transformer.build_model,
            byte_transformer.ByteTransformer,
            lambda section, seed, wanted: byte_transformer.initial_values(section, seed),
            byte_transformer.rotary_tables,
        ),
        "transformer": CountedKind(
            transformer.build_model,
            transformer.Transformer,
            transformer.initial_values,
            transformer.rotary_tables,
        ),
    }
)
