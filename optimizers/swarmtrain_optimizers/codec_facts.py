"""Facts of codecs without their arithmetic: lengths, exactness, needs.

For those who decide about an exchange and must not load torch or numpy: the coordinator, and the
check of a run file. The codecs themselves are in `codecs`; a test holds every fact against them.
"""

import re
from dataclasses import dataclass

_KEPT = 64
_BLOCK_MAX = 65_536
_ANCHOR_BITS = 8
_TOPK = re.compile(r"topk(?:-([1-9][0-9]{0,4}))?")


@dataclass(frozen=True, slots=True)
class CodecFacts:
    """One codec.

    Attributes:
        name: the codec's name in PLAN.
        bits: size of a value's code, or of a kept value's where only some are kept.
        block_bytes: size of a block's scales.
        exact: True if sums of its parts do not depend on their order (protocol.md rule 7).
        is_biased: True if values are wrong on average, so that error feedback is needed.
        dithers: True if it can round stochastically.
        kept: values of each block that are sent, None for all.
    """

    name: str
    bits: int
    block_bytes: int = 2
    exact: bool = True
    is_biased: bool = False
    dithers: bool = False
    kept: int | None = None

    @property
    def carries_anchors(self) -> bool:
        """True if weights themselves may go through it, as a pair's anchors do, not only changes.

        Its loss on a change shrinks with the change; its loss on a weight is a share of the weight
        in every round. Replicas of noloco were seen to end 4 to 8 times as far apart with 4 bits as
        without a loss, and hardly farther with 8 (`tests/optimizers/test_noloco.py`).
        """
        return not self.is_biased and self.bits >= _ANCHOR_BITS

    @property
    def result(self) -> str:
        """Name of the codec of an op's result. A mean is sent once and nobody feeds its error
        back, so it has 8 bits even where parts have fewer."""
        return "int8" if self.exact else self.name

    def block_problem(self, block: int) -> str:
        """Return the trouble with blocks of this size; "" if there is none."""
        per_byte = 8 // self.bits if self.bits < 8 else 1
        if self.kept is not None:
            if not self.kept <= block <= _BLOCK_MAX:
                return f"must be from {self.kept} to {_BLOCK_MAX}"
        elif block % per_byte:
            return f"must be a multiple of {per_byte}"
        return ""

    def payload_bytes(self, num_values: int, block: int) -> int:
        """Length of a chunk of whole blocks.

        Raises:
            ValueError: such blocks do not do.
        """
        if problem := self.block_problem(block):
            raise ValueError(f"a block of {self.name} {problem}, it is {block}")
        if self.kept is None:
            return num_values // block * self.block_bytes + num_values * self.bits // 8
        index_bits = max(1, (block - 1).bit_length())
        return (
            num_values // block * (self.block_bytes + -(-self.kept * (index_bits + self.bits) // 8))
        )

    def bytes_per_value(self, block: int) -> float:
        """Encoded bytes per value.

        Raises:
            ValueError: such blocks do not do.
        """
        return self.payload_bytes(block, block) / block


_FACTS = (
    CodecFacts("int8", 8, dithers=True),
    CodecFacts("int4", 4, dithers=True),
    CodecFacts("e3m0", 4, dithers=True),
    CodecFacts("two_bit", 2, is_biased=True),
    CodecFacts("sign", 1, is_biased=True),
    CodecFacts("none", 32, block_bytes=0, exact=False),
)
CODEC_NAMES = (*(facts.name for facts in _FACTS), "topk", "topk-K")
"""Every name, for people."""
ANCHOR_CODECS = tuple(facts.name for facts in _FACTS if facts.carries_anchors)
"""Codecs that strategies may use whose ops go by pairs."""


def facts_of(name: str) -> CodecFacts:
    """The facts of the codec with this name in PLAN; ``topk-K`` keeps K values of each block.

    Raises:
        ValueError: this version knows no such codec.
    """
    for facts in _FACTS:
        if facts.name == name:
            return facts
    topk = _TOPK.fullmatch(name)
    kept = int(topk[1] or _KEPT) if topk else 0
    if not 1 <= kept <= _BLOCK_MAX:
        raise ValueError(f"codec {name!r} is not known; known are {', '.join(CODEC_NAMES)}")
    return CodecFacts(name, 2, block_bytes=4, is_biased=True, kept=kept)
