"""What an optimizer remembers of weights that were no numbers any more.

A NaN in a parameter is a NaN in its moments, and these would make every later weight one too: a
peer that the run's weights have healed would be lost again after one step. So the memory of such a
parameter is dropped with it.
"""

import torch


def forget_broken(optimizer: torch.optim.Optimizer) -> int:
    """Drop the state of every parameter that is not finite now; it is made again by the next step.

    Call it before the weights are replaced. It costs one reading of the weights.

    Returns:
        How many parameters were not finite.
    """
    broken = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not bool(torch.isfinite(parameter.detach()).all()):
                optimizer.state.pop(parameter, None)
                broken += 1
    return broken
