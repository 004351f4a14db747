"""Codecs: how values become bytes. One file each; this face finds them by their name in PLAN."""

from swarmtrain_optimizers.codecs.base import Codec
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.codecs.raw import Raw

_CODECS: tuple[Codec, ...] = (Int8(), Raw())
CODECS: dict[str, Codec] = {codec.name: codec for codec in _CODECS}


def codec_named(name: str) -> Codec:
    """The codec with this name in PLAN.

    Raises:
        ValueError: this version knows no such codec.
    """
    try:
        return CODECS[name]
    except KeyError:
        known = ", ".join(sorted(CODECS))
        raise ValueError(f"codec {name!r} is not known to this version; it knows {known}") from None
