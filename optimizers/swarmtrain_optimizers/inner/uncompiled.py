"""Torch's optimizers without their ties to torch's compiler; the bits are the same.

Whoever makes one loads the compiler, and its every step asks for it: two seconds and seventy
megabytes in each peer, of which only `join --compile` has any use. The ties are decorators that do
nothing in a program that is not being compiled. Here are the functions inside of them.

Not here: anything about a step itself.
"""

import inspect

import torch


class Uncompiled(torch.optim.Optimizer):
    """An optimizer that asks nothing of torch's compiler but in its own `step`."""

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class AdamW(Uncompiled, torch.optim.AdamW):
    """Torch's AdamW."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))
