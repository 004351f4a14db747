"""A model as a list of blocks, of which a peer makes only those that it serves.

A block takes one tensor and gives one; the next block takes that. Blocks lie on the meta device:
they have shapes and no values, and `build` makes the values of a few. A parameter keeps the name
that it has in the unsplit model, so stages, full replicas and checkpoints fit together by name.
Values that a run begins with come one tensor at a time, from the run's seed: those of a part are
bit for bit those of the whole, which nobody has to make.

Not here: which blocks make up a stage (`cut`), and computing with them (`span`).
"""

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from swarmtrain.config.settings import ModelSection
from swarmtrain.foundation.errors import UserError
from swarmtrain.models.build import counted_kind

Loss = Callable[[Tensor, Tensor], Tensor]
"""(output of the last block, labels) -> (), the sum of the losses of all tokens."""

Values = Callable[[int, frozenset[str]], Iterator[tuple[str, Tensor]]]
"""(seed, names wanted) -> name and fresh values of these, perhaps of others too, one at a time."""

Initialise = Callable[[nn.Module], object]
"""Sets the parameters that a module holds itself, as given to `nn.Module.apply`."""

_T = TypeVar("_T")

_SECOND_CALL = "@"
"""In names that tracing gives to a module each time that it is called again."""


@dataclass(frozen=True, slots=True)
class Block:
    """The smallest part of a model that can be served.

    Attributes:
        name: name in a run file.
        parts: modules by their dotted names in the unsplit model; "" is the model itself.
        call: (those modules, input) -> output.
        unsaved: buffers that the unsplit model does not save, and tracing would.
    """

    name: str
    parts: Mapping[str, nn.Module]
    call: Callable[..., Tensor]
    unsaved: frozenset[str] = frozenset()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names in the unsplit model, and parameters and buffers; one that has two names twice."""
        return _tensors(self.parts)


@dataclass(frozen=True, slots=True)
class BlockModel:
    """A model as blocks.

    Attributes:
        blocks: blocks in the order in which they are called.
        loss: loss of the last one's output.
        values: values that a run begins with.
    """

    blocks: tuple[Block, ...]
    loss: Loss
    values: Values


@dataclass(frozen=True, slots=True)
class BuiltBlocks:
    """Blocks that follow each other, with values, on one device.

    Attributes:
        blocks: their places in the model.
        calls: input -> output, of each.
        module: holds their parameters and saved buffers under the names of the unsplit model: for
            layouts, optimizers and checkpoints. It is not called.
    """

    blocks: range
    calls: tuple[Callable[[Tensor], Tensor], ...]
    module: nn.Module


def built_in(section: ModelSection) -> BlockModel:
    """The transformer of a run file: ``embedding``, ``blocks.0`` and so on, ``head`` with the last
    norm. The bits of its first values are those of `build_model`."""
    kind = counted_kind(section)
    with torch.device("meta"):
        model: Any = kind.sketch(section)
    tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def layer(part: nn.Module, hidden_BTC: Tensor) -> Tensor:
        device, num_positions = hidden_BTC.device, hidden_BTC.shape[1]
        if device not in tables:
            with torch.device("cpu"):  # one table everywhere, by the processor's arithmetic
                cos_TC, sin_TC = kind.tables(section)
            tables[device] = cos_TC.to(device), sin_TC.to(device)
        cos_TC, sin_TC = tables[device]
        out_BTC: Tensor = part(hidden_BTC, cos_TC[:num_positions], sin_TC[:num_positions])
        return out_BTC

    def head(norm: nn.Module, table: nn.Module, hidden_BTC: Tensor) -> Tensor:
        logits_BTV: Tensor = table(norm(hidden_BTC))
        return logits_BTV

    def loss(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
        flat = logits_BTV.reshape(-1, logits_BTV.shape[-1])
        return F.cross_entropy(flat, labels_BT.reshape(-1), reduction="sum")

    layers = (
        Block(f"blocks.{index}", {f"blocks.{index}": part}, layer)
        for index, part in enumerate(model.blocks)
    )
    first = Block("embedding", {"embedding": model.embedding}, _call)
    last = Block("head", {"norm": model.norm, "head": model.head}, head)
    return BlockModel(
        (first, *layers, last), loss, lambda seed, wanted: kind.values(section, seed, wanted)
    )


def of_modules(
    modules: nn.Module | Sequence[nn.Module],
    loss: Loss,
    *,
    initialise: Initialise | None = None,
) -> BlockModel:
    """A model of one's own: modules of which each takes what the one before gives.

    Make them under ``torch.device("meta")``, and nobody holds more than the blocks that it serves.
    Then every module that has parameters sets them in its ``reset_parameters``, as torch's own do,
    or `initialise` does. Modules with values keep these.

    Args:
        modules: an `nn.Sequential`, an `nn.ModuleList`, or a list.
        loss: sum over all tokens.
        initialise: called after ``reset_parameters`` with each module that holds parameters.

    Raises:
        UserError: SWT-E613, something in them cannot be trained in stages.
    """
    whole = modules if isinstance(modules, nn.Module) else nn.ModuleList(modules)
    if not isinstance(whole, nn.Sequential | nn.ModuleList) or not len(whole):
        raise cannot(
            f"a {type(whole).__name__} says nothing of the order of its parts",
            "Give an nn.Sequential or a list of modules, or the names at which `of_traced` cuts.",
        )
    names = whole._modules  # named_children leaves out a module that comes again
    blocks = tuple(
        Block(name, {name: part}, _call) for name, part in zip(names, whole, strict=True)
    )
    _check(whole)
    return BlockModel(blocks, loss, _values_of(whole, initialise))


def of_traced(
    model: nn.Module,
    example: Tensor,
    at: Sequence[str],
    loss: Loss,
    *,
    initialise: Initialise | None = None,
) -> BlockModel:
    """A model of one's own, cut by tracing it (`torch.distributed.pipelining`; its runtime is not
    used).

    Args:
        model: takes one tensor; best on the meta device, as for `of_modules`.
        example: an input of one micro-batch, on the model's device. All have its shape.
        at: names of submodules; each begins a new block, which has its name.
        loss: see `of_modules`.
        initialise: see `of_modules`.

    Raises:
        UserError: SWT-E613, it cannot be traced, or not be cut there.
    """
    from torch.distributed.pipelining import SplitPoint, pipeline  # a second to import

    _check(model)
    known = dict(model.named_modules())
    if unknown := [name for name in at if name not in known or not name]:
        raise cannot(f"it has no submodule `{unknown[0]}`", f"It has {', '.join(known)[:300]}.")
    try:
        with _quiet():
            pipe = pipeline(model, (example,), split_spec=dict.fromkeys(at, SplitPoint.BEGINNING))
    except Exception as error:  # whatever the user's own forward raises under the tracer
        raise cannot(
            f"it cannot be traced: {error}",
            "Control flow that depends on data is the usual reason. Give its blocks as a list.",
        ) from error
    finally:
        for name in at:  # the tracer leaves its split points in the model
            for word in ("forward", "_orig_forward"):
                known[name].__dict__.pop(word, None)
    if pipe.replicated_params:
        names = ", ".join(sorted(set(pipe.replicated_params[0].values())))
        raise _tied(names)
    if pipe.num_stages != len(at) + 1:
        raise cannot(
            f"{len(at)} cuts make {pipe.num_stages} blocks",
            "The module that is called first cannot be a cut, and none may come twice.",
        )
    pieces = _chained(pipe.split_gm, (*at, "the end"))
    buffers = frozenset(name for name, _ in model.named_buffers())
    unsaved = buffers - model.state_dict().keys()
    first = next((name for name, _ in pieces[0].named_children()), "input")
    blocks = (
        Block(name, {"": piece}, _call, unsaved)
        for name, piece in zip((first, *at), pieces, strict=True)
    )
    return BlockModel(tuple(blocks), loss, _values_of(model, initialise))


def build(
    model: BlockModel, blocks: range, *, seed: int, device: torch.device | str = "cpu"
) -> BuiltBlocks:
    """Make some blocks of a model, with the values that a run begins with.

    At no time there is more than these blocks and one other tensor.

    Args:
        model: stays as it is.
        blocks: numbers of the blocks.
        seed: seed of the run.
        device: device on which they compute.

    Raises:
        UserError: SWT-E613, nothing sets the values of a tensor.
    """
    chosen = [model.blocks[index] for index in blocks]
    parts = copied([dict(block.parts) for block in chosen])  # at once, so that ties hold
    wanted = {name for part in parts for name, tensor in _tensors(part) if tensor.is_meta}
    modules = [module for part in parts for module in part.values()]
    _make(modules, torch.device(device))
    _redirect(modules, torch.device(device))
    places = {name: tensor for part in parts for name, tensor in _tensors(part)}
    with torch.no_grad(), torch.device("cpu"):  # drawn there, for the bits to be the same
        for name, values in model.values(seed, frozenset(wanted)) if wanted else ():
            if name in wanted:
                places[name].copy_(values)
                wanted.remove(name)
    assert not wanted, wanted
    calls = tuple(
        _bound(block.call, tuple(part.values())) for block, part in zip(chosen, parts, strict=True)
    )
    unsaved = frozenset[str]().union(*(block.unsaved for block in chosen))
    return BuiltBlocks(blocks, calls, _named(parts, unsaved))


def copied(modules: _T, memo: dict[int, Any] | None = None) -> _T:
    """A deep copy of modules, traced ones too; `memo` has what takes the place of tensors by id."""
    with _quiet():
        return copy.deepcopy(modules, memo)


def refuse_shared(model: BlockModel, stages: Sequence[range]) -> None:
    """Refuse weights that two stages share: each would train its own.

    Raises:
        UserError: SWT-E613.
    """
    owners: dict[int, tuple[int, str]] = {}
    for stage, blocks in enumerate(stages):
        for name, tensor in (pair for index in blocks for pair in model.blocks[index].tensors()):
            owner, first_name = owners.setdefault(id(tensor), (stage, name))
            if owner != stage and isinstance(tensor, nn.Parameter):
                raise _tied(f"{first_name}, {name}")


def cannot(fact: str, remedy: str) -> UserError:
    """The error of a model that cannot be trained in stages."""
    return UserError("SWT-E613", f"The model cannot be cut: {fact}.", "", remedy)


@contextmanager
def _quiet() -> Iterator[None]:
    """Tracing, and copying what was traced, makes torch warn of its own innards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _tied(names: str) -> UserError:
    return cannot(
        f"two stages share the same weights ({names})",
        "Give each its own, or cut so that one stage has both.",
    )


def _call(part: nn.Module, value: Tensor) -> Tensor:
    out: Tensor = part(value)
    return out


def _bound(call: Callable[..., Tensor], parts: tuple[nn.Module, ...]) -> Callable[[Tensor], Tensor]:
    return lambda value: call(*parts, value)


def _tensors(parts: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for prefix, part in parts.items():
        for path, module in part.named_modules():
            if _SECOND_CALL in path:
                continue
            yield from _own_tensors(".".join(filter(None, (prefix, path))), module)


def _own_tensors(path: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a module holds itself, by their whole names."""
    for name, tensor in (
        *module.named_parameters(recurse=False, remove_duplicate=False),
        *module.named_buffers(recurse=False, remove_duplicate=False),
    ):
        yield (f"{path}.{name}" if path else name), tensor


def _make(modules: Sequence[nn.Module], device: torch.device) -> None:
    """Put memory, not values, behind all that lies on the meta device; move the rest."""
    made: dict[int, tuple[Tensor, Tensor]] = {}  # with the old one, so that no id is used again
    for module in (inner for outer in modules for inner in outer.modules()):
        for name, old in list(_own_tensors("", module)):
            if id(old) not in made:
                new = torch.empty_like(old, device=device) if old.is_meta else old.to(device)
                if isinstance(old, nn.Parameter):
                    new = nn.Parameter(new.detach(), requires_grad=old.requires_grad)
                made[id(old)] = old, new
            setattr(module, name, made[id(old)][1])


def _redirect(modules: Sequence[nn.Module], device: torch.device) -> None:
    """Tracing writes down on which device an operation makes a tensor; write this one."""
    for inner in (inner for outer in modules for inner in outer.modules()):
        for traced in (inner, vars(inner).get("graph_module")):
            if isinstance(traced, torch.fx.GraphModule):
                for step in traced.graph.nodes:
                    if step.op == "call_function" and "device" in step.kwargs:
                        step.update_kwarg("device", device)
                traced.recompile()


def _named(parts: Sequence[Mapping[str, nn.Module]], unsaved: frozenset[str]) -> nn.Module:
    """A tree of empty modules that hold what the parts save, under whole names."""
    root = nn.Module()
    for prefix, part in (item for some in parts for item in some.items()):
        for name, tensor in part.state_dict(keep_vars=True).items():
            whole = f"{prefix}.{name}" if prefix else name
            if _SECOND_CALL in name or whole in unsaved:
                continue
            *path, last = whole.split(".")
            holder = root
            for word in path:
                if word not in dict(holder.named_children()):
                    holder.add_module(word, nn.Module())
                holder = holder.get_submodule(word)
            if isinstance(tensor, nn.Parameter):
                holder.register_parameter(last, tensor)
            elif isinstance(tensor, Tensor):
                holder.register_buffer(last, tensor)
    return root


def _chained(traced: torch.fx.GraphModule, cuts: Sequence[str]) -> list[nn.Module]:
    """The pieces in their order, if each takes one tensor, the one that the piece before gives.

    Raises:
        UserError: SWT-E613.
    """
    pieces: list[nn.Module] = []
    before = None
    for step in traced.graph.nodes:
        if step.op == "call_module" and (before is None or step.args == (before,)):
            pieces.append(traced.get_submodule(step.target))
        elif step.op != "placeholder" and (step.op != "output" or step.args != ((before,),)):
            raise cannot(
                f"more than one tensor crosses the cut at {cuts[max(0, len(pieces) - 1)]}",
                "Cut elsewhere, or let later blocks make what they need besides.",
            )
        before = step
    return pieces


def _values_of(whole: nn.Module, initialise: Initialise | None) -> Values:
    """Make values module by module: each has a seed of its own, so no other need be made."""

    def values(seed: int, wanted: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
        for path, module in whole.named_modules(remove_duplicate=False):
            if any(name in wanted for name, _ in _own_tensors(path, module)):
                yield from _fresh(path, module, seed, initialise)

    return values


def _fresh(
    path: str, module: nn.Module, seed: int, initialise: Initialise | None
) -> Iterator[tuple[str, Tensor]]:
    """The values that a module gives itself; its children stay on the meta device."""
    digest = hashlib.sha256(b"swarmtrain first values 1" + seed.to_bytes(8, "big") + path.encode())
    made = copy.deepcopy(module)
    own = [name for name, _ in _own_tensors("", made)]
    for name in own:
        old = getattr(made, name)
        new = torch.full_like(old, float("nan"), device="cpu")
        setattr(made, name, nn.Parameter(new) if isinstance(old, nn.Parameter) else new)
    reset = getattr(made, "reset_parameters", getattr(made, "_reset_parameters", None))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(int.from_bytes(digest.digest()[:8], "big"))
        if reset is not None:
            reset()
        if initialise is not None:
            initialise(made)
    for name, tensor in _own_tensors(path, made):
        if tensor.isnan().any():
            raise cannot(
                f"nothing sets the values of `{name}`, which lies on the meta device",
                f"Give {type(module).__name__} a `reset_parameters` that sets it, or an "
                "`initialise`.",
            )
        yield name, tensor


def _check(whole: nn.Module) -> None:
    """Refuse what would not be the same in stages.

    Raises:
        UserError: SWT-E613.
    """
    for path, module in whole.named_modules():
        place = f"`{path}` ({type(module).__name__})"
        if getattr(module, "track_running_stats", False):
            raise cannot(
                f"{place} keeps statistics of the batches that it has seen",
                "They depend on the route of each micro-batch. Take LayerNorm or GroupNorm.",
            )
        if any(isinstance(value, torch.Generator) for value in vars(module).values()):
            raise cannot(
                f"{place} draws from a generator of its own",
                "A block is computed again for its gradient and must draw the same. Let it draw "
                "from torch's own generator, which is set before each block.",
            )
        for name, tensor in _own_tensors(path, module):
            if is_lazy(tensor):
                raise cannot(f"the shape of `{name}` is not known yet", "Say it when it is made.")
            if tensor.is_meta and not tensor.is_floating_point():
                raise cannot(
                    f"`{name}` lies on the meta device and is {tensor.dtype}",
                    "Only values of a floating type can be made later. Make it in forward.",
                )
