"""The backward pass of a span in two parts: the input's gradient first, the weights' after it.

The peer before waits for the input's gradient and nobody for the weights', so it is made alone and
sent while the others are computed (the idea of zero bubble schedules, arXiv 2401.10241). An
operation that has weights is in both parts: what arrives at it is kept in the first and given to it
again in the second, which so computes nothing twice and gets the bits of a backward pass in one.
`torch.distributed.pipelining` does the same, in a file that is its own.

Not here: whose gradient may be counted.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

_MATRIX = 2
"""Dimensions of a weight that waits. A norm makes its gains' gradient with the input's anyway."""


class Backward:
    """One backward pass.

    Args:
        output: output of a forward pass with its graph.
        gradient: gradient of `output`; None where that is a sum of losses.
        given: the input, a leaf that wants a gradient; None if it has none to give.
        parameters: parameters of which some have made `output`.

    Attributes:
        input_gradient: gradient of `given`, in its shape; None without.
    """

    def __init__(
        self,
        output: Tensor,
        gradient: Tensor | None,
        given: Tensor | None,
        parameters: Sequence[Tensor],
    ) -> None:
        self.input_gradient: Tensor | None = None
        self._whole: tuple[Tensor, Tensor | None] | None = None
        self._parameters = [one for one in parameters if one.requires_grad]
        self._made: list[tuple[Tensor, Tensor | None]] = []  # in the first part, by parameter
        self._places: list[_Place] = []
        if given is None:
            self._whole = output, gradient
        else:
            self._input_first(output, gradient, given)

    def add_weights(self) -> None:
        """Add the gradients of the weights to their `grad`; once at most.

        A pass for which it is not called counts for nothing.
        """
        made, self._made = self._made, []
        for parameter, gradient in made:
            _add(parameter, gradient)
        while self._places:
            place = self._places.pop(0)  # what it alone keeps alive goes with it
            for parameter, gradient in zip(place.parameters, place.gradients(), strict=True):
                _add(parameter, gradient)
        if self._whole is not None:
            output, arrived = self._whole
            self._whole = None
            torch.autograd.backward(output, arrived, inputs=self._parameters)

    def _input_first(self, output: Tensor, gradient: Tensor | None, given: Tensor) -> None:
        if not output.requires_grad:
            return
        self._places, early = _places(output, given, self._parameters)
        hooks = [place.operation.register_prehook(place.keep) for place in self._places]
        try:
            first, *others = torch.autograd.grad(
                output, [given, *early], gradient, retain_graph=True, allow_unused=True
            )
        finally:
            for hook in hooks:
                hook.remove()
        self.input_gradient = torch.zeros_like(given) if first is None else first
        self._made = list(zip(early, others, strict=True))


class _Place:
    """An operation between input and output in which weights come in."""

    def __init__(self, operation: Node, parameters: list[Tensor]) -> None:
        self.operation = operation
        self.parameters = parameters
        self._arrived: tuple[Tensor | None, ...] = ()

    def keep(self, arrived: tuple[Tensor | None, ...]) -> None:
        """Remember what arrives at it."""
        self._arrived = arrived

    def gradients(self) -> tuple[Tensor | None, ...]:
        """Gradients of its weights."""
        there = [(index, one) for index, one in enumerate(self._arrived) if one is not None]
        if not there:
            return (None,) * len(self.parameters)
        return torch.autograd.grad(
            [GradientEdge(self.operation, index) for index, _ in there],
            self.parameters,
            [one for _, one in there],
            allow_unused=True,
        )


def _places(
    output: Tensor, given: Tensor, parameters: Sequence[Tensor]
) -> tuple[list[_Place], list[Tensor]]:
    """The operations where matrices come in, from the output on; and the weights that are made with
    the input's gradient: vectors, and what comes in at more than one of them or at none."""
    leaves = {get_gradient_edge(parameter).node: parameter for parameter in parameters}
    goal = get_gradient_edge(given).node
    on_way: set[Node] = set()  # those that lead to the input
    below: dict[Node, frozenset[Node]] = {}  # of all others, the weights that they lead to
    owners: dict[Node, list[Node]] = {leaf: [] for leaf in leaves}
    order = _from_the_leaves(get_gradient_edge(output).node)
    for operation in order:
        nexts = [child for child, _ in operation.next_functions if child is not None]
        aside = frozenset[Node]().union(*(below[one] for one in nexts if one not in on_way))
        if operation is goal or any(child in on_way for child in nexts):
            on_way.add(operation)
            for leaf in aside:
                owners[leaf].append(operation)
        else:
            below[operation] = aside | ({operation} & leaves.keys())
    found: dict[Node, list[Tensor]] = {}
    early = []
    for leaf, parameter in leaves.items():
        if len(owners[leaf]) == 1 and parameter.ndim >= _MATRIX:
            found.setdefault(owners[leaf][0], []).append(parameter)
        else:
            early.append(parameter)
    return [
        _Place(operation, found[operation]) for operation in reversed(order) if operation in found
    ], early


def _from_the_leaves(root: Node) -> list[Node]:
    """Every operation that `root` needs, each after those that it needs itself."""
    order: list[Node] = []
    seen: set[Node] = set()
    waiting: list[tuple[Node, bool]] = [(root, False)]
    while waiting:
        operation, is_ready = waiting.pop()
        if is_ready:
            order.append(operation)
        elif operation not in seen:
            seen.add(operation)
            waiting.append((operation, True))
            waiting += [
                (child, False) for child, _ in operation.next_functions if child is not None
            ]
    return order


def _add(parameter: Tensor, gradient: Tensor | None) -> None:
    if gradient is None:
        return
    if parameter.grad is None:  # a copy, as autograd may give what it has given to others too
        parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
    else:
        parameter.grad.add_(gradient)
