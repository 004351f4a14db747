"""Kinds of op, as PLAN names them: three uses of contributions.

``mean``: owners of slices sum them. ``gather``: everybody gets everybody's contribution whole, as
its contributor has encoded it, and decodes the weighted mean itself: for codecs whose mean takes
more bytes than its parts. ``pair``: each contributor gets one other's, its partner's of this op,
and nothing is shared by all.
"""

from swarmtrain_transport.errors import LocalFault

MEAN = "mean"
GATHER = "gather"
PAIR = "pair"
KINDS = frozenset({MEAN, GATHER, PAIR})

WHOLE = frozenset({GATHER, PAIR})
"""Kinds whose slices are the contributions, each whole, published by those who have made them."""

PAIR_VECTORS = 2
"""Contents of a contribution to a pair op: the difference, then the anchor. Where PLAN says 1 it is
the weights alone."""


RING = "ring"
EXPONENTIAL = "exponential"
CLOCKS = "clocks"
"""Peers meet by clocks of their own: an op is of two that are ready, and others begin beside it."""

GRAPHS = frozenset({"", RING, EXPONENTIAL, CLOCKS})
"""Graphs along whose edges pairs meet; "" where partners are drawn anew for each op."""

PAIRS_AT_ONCE = 32
"""Ops that may be under way at once where peers meet by clocks."""


def constant_of(kind: str) -> str:
    """The very constant above that is equal to `kind`.

    PLAN leaves its kind out where that is the default, so that mean ops are recorded as they were
    before there were kinds. msgspec tells a default by identity: an equal string that was read from
    a run file would be written, and would give the record another hash.

    Raises:
        LocalFault: there is no such kind.
    """
    for known in (MEAN, GATHER, PAIR):
        if kind == known:
            return known
    raise LocalFault(f"an op of kind {kind!r} cannot be planned")
