"""What an op does with contributions: the kinds that PLAN can name.

``mean``: owners of slices sum them. ``gather``: everybody gets everybody's contribution whole, as
its contributor has encoded it, and decodes the weighted mean itself: for codecs whose mean takes
more bytes than its parts.
"""

MEAN = "mean"
GATHER = "gather"
KINDS = frozenset({MEAN, GATHER})
