"""Check at the door, before a JOIN, that what a peer brings is what the run's file is for.

Only what the file fixes is asked for, and only of peers that say what they bring: it keeps people
from a mistake, and is no defence. A first state of another model than the built-in one that the
file names is refused by the machine.
"""

from collections.abc import Sequence

from swarmtrain.config.built_in import built_in_parameters, counted, layout_digest, num_values_of
from swarmtrain.config.settings import RunConfig
from swarmtrain.console.units import human_bytes
from swarmtrain.foundation.errors import cleaned
from swarmtrain.pipeline.costs import span_words
from swarmtrain_transport.pipeline.coordinator.assignment import StageNeed, memory_of
from swarmtrain_transport.wire.messages import BUILT_IN, OWN, Brings
from swarmtrain_transport.wire.records import Attest


def misfit(brings: Brings, config: RunConfig, genesis: Attest | None) -> tuple[str, str] | None:
    """Error id and words for who cannot take part, both sides named; None for who can.

    Args:
        genesis: the run's first state, once there is one.
    """
    name, is_custom = config.run.name, config.model.kind == "custom"
    if brings.run and brings.run != name:
        return (
            "SWT-E316",
            f"The invite names the run {cleaned(brings.run)}, and this coordinator's is {name}.",
        )
    needs_text, has_text = config.data.source == OWN, brings.data == OWN
    if brings.model == BUILT_IN and (is_custom or (needs_text and not has_text)):
        what = "a model" if is_custom else "data"
        how = "" if is_custom else " Join with --data PATH: the text stays on its machine."
        return (
            "SWT-E607",
            f"The run {name} trains on {what} that its peers bring themselves, and this peer"
            f" brings none.{how}",
        )
    if brings.model == BUILT_IN and has_text and not needs_text:
        return (
            "SWT-E827",
            f"The run {name} trains on text that its coordinator gives out, and this peer brings"
            " text of its own. Join without --data.",
        )
    if brings.model != OWN:
        return None
    if not is_custom and brings.data == OWN and config.data.source != OWN:
        return (
            "SWT-E609",
            f"The run {name} trains the built-in {config.model.kind} on text that its coordinator"
            f" gives out; this peer brings a model of {brings.num_values} values and data of its"
            " own.",
        )
    return _other_model(brings, config, genesis)


def no_place(
    brings: Brings, config: RunConfig, needs: Sequence[StageNeed]
) -> tuple[str, str] | None:
    """Error id and words for who asks for stages that there are not, or has too little memory.

    Args:
        brings: claims of the peer; as the machine has checked them, or refuses them.
    """
    name, last, memory = config.run.name, len(needs) - 1, brings.memory_bytes
    wish = range(brings.span[0], brings.span[1] + 1) if len(brings.span) == 2 else None
    if wish is not None and not (wish and wish[0] >= 0 and wish[-1] <= last):
        has = f"stages 0 to {last}" if last else "its model in one piece"
        asked = f"{wish.start}-{wish.stop - 1}"
        return "SWT-E614", f"The run {name} has {has}, and this peer asks for the span {asked}."
    if not memory or counted(config) is None:
        return None
    wishes = [range(stage, stage + 1) for stage in range(last + 1)] if wish is None else [wish]
    least = min(wishes, key=lambda span: memory_of(needs, span))
    if memory_of(needs, least) <= memory:
        return None
    of = span_words(least) if last else "its model"
    smallest = ", the smallest," if wish is None and last else ""
    return (
        "SWT-E614",
        f"Of the run {name} {of}{smallest} takes about {human_bytes(memory_of(needs, least))} of"
        f" memory, and this peer gives {human_bytes(memory)}.",
    )


def _other_model(
    brings: Brings, config: RunConfig, genesis: Attest | None
) -> tuple[str, str] | None:
    built_in = built_in_parameters(config.model)
    if config.model.digest:
        if brings.layout.hex() == config.model.digest:
            return None
        return (
            "SWT-E804",
            f"The run {config.run.name} has its model in {config.pipeline.num_stages} stages: the "
            f"digest of its swarmtrain.StagedModel is {config.model.digest}, and that of this "
            f"peer's model {brings.layout.hex() or 'unsaid'}.",
        )
    if built_in:
        layout, num_values = layout_digest(built_in), num_values_of(built_in)
    elif genesis is not None:
        layout, num_values = genesis.layout, genesis.num_values
    else:
        return None
    if not brings.layout or brings.layout == layout:
        return None
    return (
        "SWT-E804",
        f"This peer's model has {brings.num_values} values, the run's has {num_values} (or other"
        " names and shapes).",
    )
