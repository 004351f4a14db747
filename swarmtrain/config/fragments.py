"""Check that the built-in model can be cut into as many fragments as a run file asks for.

Known before any model is made: its parameters' names and sizes follow from four numbers.
"""

import math
from collections.abc import Iterator

from swarmtrain.config.built_in import built_in_parameters
from swarmtrain.config.problem import Problem
from swarmtrain.config.settings import ModelSection, RunConfig
from swarmtrain_optimizers.strategies.fragments import fragments_of


def parameters_of(model: ModelSection) -> list[tuple[str, int]]:
    """(name, values) of every parameter of the built-in model, in its order."""
    return [(name, math.prod(shape)) for name, shape, _ in built_in_parameters(model)]


def fragment_problems(config: RunConfig) -> Iterator[Problem]:
    """Find now the trouble that peers would find when they join."""
    fragments, block = config.outer.fragments, config.exchange.block
    if config.model.kind == "custom" or fragments == 1:
        return
    parameters = parameters_of(config.model)
    num_values = -(-sum(size for _, size in parameters) // block) * block
    try:
        fragments_of(parameters, fragments, block=block, num_values=num_values)
    except ValueError as error:
        yield Problem(
            "outer.fragments",
            f"must be fewer for this model, it is {fragments}: {error}",
            "Fragments are whole layers, and one is what belongs to no layer.",
        )
