"""Operations that no machine can make otherwise, wherever bits count (protocol.md rule 4).

Method: the source is read. IEEE 754 fixes the last bit of + - * / and of the square root, and of
nothing else; of torch not even the root, as its CPU kernels go through MKL's vector library, which
rounds otherwise on processors of another make. So neither torch's elementary functions nor those of
numpy and libm are named in the modules below, nor sums in an order that a library chooses.
"""

import ast
from collections.abc import Iterator

import pytest
from source import Module, functions, modules, report

ELEMENTARY = {
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "logsumexp", "pow",
    "power", "float_power", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "arcsin",
    "arccos", "arctan", "arctan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sinc",
    "sigmoid", "logit", "softmax", "log_softmax", "softplus", "silu", "gelu", "erf", "erfc",
    "erfinv", "lgamma", "digamma", "gamma", "cbrt", "hypot", "rsqrt", "reciprocal", "special",
}  # fmt: skip
"""MKL's vector library, numpy or libm serves them; another one has another last bit."""

ORDERED = {
    "sum", "mean", "std", "var", "norm", "dot", "vdot", "matmul", "mm", "bmm", "mv",
    "addmm", "einsum", "tensordot", "cumprod", "prod", "nansum", "trace", "linalg", "fft",
    "trapezoid", "average", "convolve", "sumprod", "dist", "cdist", "renorm",
}  # fmt: skip
"""Their sums are made in an order that a library chooses by processor and threads."""

FUSED = {"addcmul", "addcdiv", "lerp", "baddbmm", "fma", "autocast"}
"""One rounding where the rule has two, on some processors."""

ROOTS = {"math.sqrt", "np.sqrt"}
"""Correctly rounded everywhere: both are the processor's own instruction."""

WHOLE_NAMES = {"torch.compile", "torch.inner", "np.inner"}
"""As above, with a last word that means other things too."""

LOCAL = {
    "swarmtrain.hook.api": "the user's own loop",
    "swarmtrain.hook.members": "the user's own loop",
    "swarmtrain.compare": "runs on one machine, beside each other",
    "swarmtrain.data": "which text a peer trains on",
    "swarmtrain.demo": "shows, computes nothing",
    "swarmtrain.models": "inner steps are a peer's own",
    "swarmtrain.peer.training.gradients": "inner steps are a peer's own",
    "swarmtrain.peer.training.moments": "inner steps are a peer's own",
    "swarmtrain.peer.training.trainer": "inner steps are a peer's own",
    "swarmtrain.pipeline": "inner steps are a peer's own",
    "swarmtrain.simulate": "a swarm in one process",
    "swarmtrain.trained": "uses a model, makes no state",
    "swarmtrain_optimizers.inner": "inner steps are a peer's own",
}
"""Modules with tensors, and those within them, of which nothing enters a state root."""

EXCUSED = {
    ("swarmtrain.peer.arithmetic", "finish"): "a codec's own mean",
    ("swarmtrain.peer.arithmetic", "gauges"): "shown to people, decides nothing",
    ("swarmtrain_optimizers.codecs.topk", "_unpacked"): "products of integers",
}
"""(module, function): why what it names is harmless."""


def where_bits_count() -> list[Module]:
    """All of transport and optimizers, and what has tensors in swarmtrain; not what is local."""
    return [
        module
        for name, module in modules().items()
        if not any(name == local or name.startswith(f"{local}.") for local in LOCAL)
        and (
            module.part != "swarmtrain"
            or any(found.name.partition(".")[0] in {"torch", "numpy"} for found in module.imports)
        )
    ]


def findings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every operation that another machine may make otherwise."""
    for part in ast.walk(tree):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Load):
            word, whole = part.attr.removesuffix("_"), ast.unparse(part)
            is_root = word == "sqrt" and whole not in ROOTS
            if is_root or word in ELEMENTARY | ORDERED | FUSED or whole in WHOLE_NAMES:
                yield part.lineno, whole
        elif isinstance(part, ast.ImportFrom) and part.module in {"torch", "numpy", "math"}:
            words = {alias.name for alias in part.names}
            for word in sorted(words & (ELEMENTARY | ORDERED | FUSED | {"sqrt"})):
                yield part.lineno, f"from {part.module} import {word}"
        elif isinstance(part, ast.BinOp | ast.AugAssign):
            whole = ast.unparse(part)
            if isinstance(part.op, ast.MatMult):
                yield part.lineno, whole
            if isinstance(part.op, ast.Pow) and not _is_exact_power(part):
                yield part.lineno, whole
        elif isinstance(part, ast.Call):
            if ast.unparse(part.func) in {"pow", "getattr"} and _names_an_operation(part):
                yield part.lineno, ast.unparse(part)
            if any(keyword.arg == "alpha" for keyword in part.keywords):
                yield part.lineno, ast.unparse(part)


def _is_exact_power(part: ast.BinOp | ast.AugAssign) -> bool:
    """Return True for a literal power of a whole number: 2**63, 10**6, 2.0**-24."""
    if isinstance(part, ast.AugAssign):
        return False
    exponent = part.right.operand if isinstance(part.right, ast.UnaryOp) else part.right
    return all(
        isinstance(side, ast.Constant) and float(side.value).is_integer()
        for side in (part.left, exponent)
    )


def _names_an_operation(call: ast.Call) -> bool:
    """Return True for the built-in pow, or for getattr with the name of a listed operation."""
    if ast.unparse(call.func) == "pow":
        return True
    words = {part.value for part in call.args if isinstance(part, ast.Constant)}
    return bool(words & (ELEMENTARY | ORDERED | FUSED | {"sqrt"}))


@pytest.mark.parametrize(
    "text",
    [
        "x.sqrt()", "x.sqrt_()", "torch.sqrt(x)", "x.rsqrt()", "from torch import sqrt", "x**0.5",
        "x **= 2", "beta ** step", "2.0 ** k", "pow(x, 2)", "x.pow(2)", "np.exp(x)", "x.tanh()",
        "getattr(torch, 'sqrt')(x)", "np.power(x, 2)", "a @ b", "torch.sum(x)",
        "math.cos(x)", "x.mean()", "torch.linalg.norm(x)", "torch.add(x, y, alpha=2)",
        "x.addcdiv_(a, b)",
    ],
)  # fmt: skip
def test_such_an_operation_is_found_wherever_it_hides(text: str) -> None:
    assert list(findings(ast.parse(text)))


@pytest.mark.parametrize(
    "text",
    ["math.sqrt(x)", "np.sqrt(x, out=x)", "2**63 - 1", "x * 2.0**-24", "x / y", "math.ldexp(1, k)"],
)
def test_what_ieee_754_fixes_is_free(text: str) -> None:
    assert not list(findings(ast.parse(text)))


def test_only_operations_that_are_the_same_everywhere_where_bits_count() -> None:
    checked = where_bits_count()
    assert {"swarmtrain_optimizers.strategies.ddp.strategy", "swarmtrain.peer.arithmetic"} <= {
        module.name for module in checked
    }
    found = []
    for module in checked:
        lines = {
            line
            for function in functions(module.tree)
            if (module.name, function.name) in EXCUSED
            for line in range(function.lineno, (function.end_lineno or function.lineno) + 1)
        }
        found += [
            f"{module.at(line)} {text}" for line, text in findings(module.tree) if line not in lines
        ]
    report(found)
