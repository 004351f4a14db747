"""Codecs: how values become bytes. One file each; this face finds them by their name in PLAN."""

import re

from swarmtrain_optimizers.codecs.base import Codec
from swarmtrain_optimizers.codecs.e3m0 import E3M0
from swarmtrain_optimizers.codecs.int4 import Int4
from swarmtrain_optimizers.codecs.int8 import Int8
from swarmtrain_optimizers.codecs.raw import Raw
from swarmtrain_optimizers.codecs.sign import Sign
from swarmtrain_optimizers.codecs.topk import TopK
from swarmtrain_optimizers.codecs.two_bit import TwoBit

_CODECS: tuple[Codec, ...] = (Int8(), Int4(), E3M0(), TwoBit(), Sign(), TopK(), Raw())
CODECS: dict[str, Codec] = {codec.name: codec for codec in _CODECS}
_TOPK = re.compile(r"topk-([1-9][0-9]{0,4})")


def codec_named(name: str) -> Codec:
    """The codec with this name in PLAN; ``topk-K`` keeps K values of each block.

    Raises:
        ValueError: this version knows no such codec.
    """
    known = CODECS.get(name)
    if known is not None:
        return known
    if topk := _TOPK.fullmatch(name):
        return TopK(int(topk[1]))
    names = ", ".join([*sorted(CODECS), "topk-K"])
    raise ValueError(f"codec {name!r} is not known to this version; it knows {names}")
