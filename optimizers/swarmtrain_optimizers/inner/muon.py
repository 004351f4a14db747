"""Muon for hidden matrices, AdamW for the rest, as one optimizer.

For a matrix W of d_out rows and d_in columns with gradient G, momentum buffer B, zero at first, its
decay mu, learning rate lr, `scale` as in `MatrixScale` and decoupled weight decay wd:

    B <- mu B + G
    D  = B, or G + mu B with `nesterov`
    O  = NewtonSchulz(D), about U V' of D's singular value decomposition
    W <- W - lr wd W - lr scale O

The rest (embeddings, head, gains, biases) is for AdamW (arXiv 1711.05101, algorithm 2). Why both in
one: a driver sets one learning rate per step, keeps one state, and hooks into one optimizer.

Steps are computed and state is kept in float32, whatever the weights are; weights of bfloat16 are
rounded once per step. torch.optim.Muon is not used: it holds matrices alone, keeps momentum in the
weights' own type, and only exists from torch 2.9 on.

References:
    MuLoCo, arXiv 2505.23725 (Muon as DiLoCo's inner optimizer: mu 0.9 without `nesterov`, AdamW
    with betas 0.9 and 0.99, outer lr 0.9 and momentum 0.8; read were its abstract and the authors'
    code and configurations, so no section is named); Jordan et al., "Muon: an optimizer for
    hidden layers in neural networks", 2024 (the iteration and its coefficients).
"""

import copy
import math
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from swarmtrain_optimizers.inner.uncompiled import Uncompiled

NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)
"""Coefficients of the quintic a x + b x^3 + c x^5. Chosen for a steep slope at zero: five steps
bring singular values between 0.7 and 1.2 rather than exactly to 1."""

_NORM_EPS = 1e-7
"""Keeps a zero matrix at zero."""


class MatrixScale(Enum):
    """The factor on an orthogonal step of a matrix of (d_out, d_in)."""

    SPECTRAL = "spectral"
    """sqrt(d_out / d_in): outputs change alike whatever the shape (MuLoCo's). lr about 0.02."""

    ADAMW = "adamw"
    """0.2 sqrt(max(d_out, d_in)): the step's root mean square is AdamW's, so that its learning rate
    and weight decay fit (Moonlight, arXiv 2502.16982, section 2.2)."""

    def of(self, num_rows: int, num_columns: int) -> float:
        """The factor for a matrix of this shape."""
        if self is MatrixScale.SPECTRAL:
            return math.sqrt(num_rows / num_columns)
        return 0.2 * math.sqrt(max(num_rows, num_columns))


def newton_schulz(matrix: Tensor, *, num_steps: int = 5) -> Tensor:
    """About the nearest orthogonal matrix, U V' of U S V': every singular value near 1.

    With X = matrix / |matrix|, laid so that rows are the short side, `num_steps` times
    X <- a X + (b A + c A A) X with A = X X'.

    Args:
        matrix: (rows, columns) in float32 or float64; only read. A zero matrix stays zero.
        num_steps: 5 in all published runs; singular values of less than about 1/500 of the norm
            are not yet near 1 then.

    Returns:
        (rows, columns), a new tensor of the same type.
    """
    a, b, c = NEWTON_SCHULZ
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if is_tall else matrix
    x = x / (torch.linalg.matrix_norm(x) + _NORM_EPS)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    orthogonal: Tensor = x.mT if is_tall else x
    return orthogonal


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """The paper's rule: two dimensions, and neither an embedding nor the output head.

    Told by the parts of the name: one that begins with ``embed``, ends with ``embed``,
    ``embedding``, ``embeddings`` or ``head``, or is ``wte``, ``wpe`` or ``unembed``, is none.

    >>> matrix = torch.zeros(4, 4)
    >>> [is_hidden_matrix(name, matrix) for name in ("blocks.0.mlp_up.weight", "lm_head.weight")]
    [True, False]
    """
    if parameter.ndim != 2:
        return False
    return not any(
        part.startswith("embed")
        or part.endswith(("embed", "embedding", "embeddings", "head"))
        or part in {"wte", "wpe"}
        for part in name.split(".")
    )


def muon_groups(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    weight_decay: float,
    is_matrix: Callable[[str, Tensor], bool] = is_hidden_matrix,
) -> list[dict[str, Any]]:
    """Parameter groups for `Muon`: hidden matrices, other tables, and vectors without decay.

    Args:
        named_parameters: `model.named_parameters()`; those without gradients are left out.
        weight_decay: decay of parameters with two dimensions or more.
        is_matrix: True for a parameter that Muon steps.

    Returns:
        Up to three groups; none is empty, none holds a parameter of another.
    """
    matrices: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in named_parameters:
        if not parameter.requires_grad:
            continue
        if is_matrix(name, parameter):
            matrices.append(parameter)
        elif parameter.ndim >= 2:
            tables.append(parameter)
        else:
            vectors.append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": matrices, "orthogonalize": True, "weight_decay": weight_decay},
        {"params": tables, "orthogonalize": False, "weight_decay": weight_decay},
        {"params": vectors, "orthogonalize": False, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


class Muon(Uncompiled):
    """Muon where a group's ``orthogonalize`` is true, AdamW where it is not.

    Args:
        params: parameters, all to be stepped by Muon, or groups as `muon_groups` makes them. Every
            argument below but `scale` may stand in a group and holds there.
        lr: learning rate of both; in the units that `scale` asks for.
        momentum: mu, 0..1.
        nesterov: True to step along G + mu B rather than B.
        weight_decay: decoupled, times lr.
        betas: betas of AdamW.
        eps: epsilon of AdamW.
        newton_schulz_steps: iterations of `newton_schulz`.
        scale: the factor on orthogonal steps; not part of the state.
        orthogonalize: default of groups that do not say.

    Raises:
        ValueError: a setting is out of range, or a parameter to be orthogonalized is no matrix.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float = 0.02,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        newton_schulz_steps: int = 5,
        scale: MatrixScale = MatrixScale.SPECTRAL,
        orthogonalize: bool = True,
    ) -> None:
        self._scale = scale
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "betas": betas,
            "eps": eps,
            "newton_schulz_steps": newton_schulz_steps,
            "orthogonalize": orthogonalize,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take one more group.

        Raises:
            ValueError: a setting is out of range, or a parameter to be orthogonalized is no matrix;
                the group was not added.
        """
        full = {**self.defaults, **param_group}
        for key, low in (("lr", 0.0), ("weight_decay", 0.0), ("eps", 0.0)):
            if not low <= full[key] < math.inf:
                raise ValueError(f"{key} must be at least {low:g}, it is {full[key]}")
        for key, value in (("momentum", full["momentum"]), *(("betas", b) for b in full["betas"])):
            if not 0 <= value < 1:
                raise ValueError(f"{key} must be at least 0 and below 1, it is {value}")
        if full["newton_schulz_steps"] < 1:
            raise ValueError(
                f"newton_schulz_steps is {full['newton_schulz_steps']}, wanted 1 or more"
            )
        params = param_group["params"]
        full["params"] = [params] if isinstance(params, Tensor) else list(params)
        if full["orthogonalize"]:
            for entry in full["params"]:
                parameter = entry[1] if isinstance(entry, tuple) else entry
                if parameter.ndim != 2:
                    raise ValueError(
                        f"a parameter of shape {tuple(parameter.shape)} is no matrix: give it to a "
                        "group with orthogonalize False, as muon_groups does"
                    )
        super().add_param_group(full)

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """One step of every parameter that has a gradient.

        Args:
            closure: evaluates the model again, with gradients, and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                update = self._orthogonal if group["orthogonalize"] else self._adaptive
                weights = parameter.to(torch.float32)
                weights = weights * (1 - group["lr"] * group["weight_decay"])
                direction = update(parameter, parameter.grad.to(torch.float32), group)
                parameter.copy_(weights.sub_(direction, alpha=group["lr"]))
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what `state_dict` gave; float32 state stays float32 beside other weights."""
        super().load_state_dict(state_dict)
        # torch has cast the state to the weights' type by now.
        saved_ids = [index for group in state_dict["param_groups"] for index in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        for saved_id, parameter in zip(saved_ids, own, strict=True):
            for key, value in state_dict["state"].get(saved_id, {}).items():
                if isinstance(value, Tensor):
                    kept = value.to(parameter.device, torch.float32, copy=True)
                    self.state[parameter][key] = kept
                else:
                    self.state[parameter][key] = copy.copy(value)

    def _orthogonal(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """scale O; moves B on."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        momentum: Tensor = state["momentum"]
        momentum.mul_(group["momentum"]).add_(gradient)
        ahead = gradient + group["momentum"] * momentum if group["nesterov"] else momentum
        orthogonal = newton_schulz(ahead, num_steps=group["newton_schulz_steps"])
        return orthogonal * self._scale.of(*gradient.shape)

    def _adaptive(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Adam's direction: bias-corrected mean over the root of the mean square."""
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["mean"] = torch.zeros_like(gradient)
            state["mean_square"] = torch.zeros_like(gradient)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean: Tensor = state["mean"]
        mean_square: Tensor = state["mean_square"]
        mean.lerp_(gradient, 1 - beta1)
        mean_square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (mean_square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        direction: Tensor = mean / (1 - beta1 ** state["step"]) / root
        return direction
