"""Check that the built-in model, or each stage of it, can be cut into the fragments asked for.

Known before any model is made: its parameters' names and sizes follow from four numbers.
"""

import math
from collections.abc import Iterable, Iterator

from swarmtrain.config.built_in import ParameterFacts, built_in_parameters
from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import RunConfig
from swarmtrain_optimizers.strategies.fragments import fragments_of


def fragment_problems(config: RunConfig) -> Iterator[Problem]:
    """Find now the trouble that peers would find when they join."""
    if not config.model.is_counted:
        return
    if error := uncut(config, built_in_parameters(config.model)):
        yield Problem(
            "outer.fragments",
            f"must be fewer for this model, it is {config.outer.fragments}: {error}",
            "Fragments are whole layers, and one is what belongs to no layer.",
        )


def uncut(config: RunConfig, parameters: Iterable[ParameterFacts]) -> str:
    """Say why these parameters cannot be cut into the run's fragments, "" if they can."""
    sizes = [(name, math.prod(shape)) for name, shape, _ in parameters]
    fragments, block = config.outer.fragments, config.exchange.block
    num_values = -(-sum(size for _, size in sizes) // block) * block
    if fragments > 1:
        try:
            fragments_of(sizes, fragments, block=block, num_values=num_values)
        except ValueError as error:
            return str(error)
    return ""
