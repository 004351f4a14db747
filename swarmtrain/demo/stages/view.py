"""The picture of a pipeline: its stages, who serves them, and what flows through. Pure."""

import msgspec

from swarmtrain.console.lines import counted
from swarmtrain.console.view import Picture
from swarmtrain.demo.setting import STAGES, Cast
from swarmtrain.demo.story import Facts
from swarmtrain.demo.view import Scene, loss_line

_BAR = 24
"""Signs of the longest bar."""

_GONE = frozenset({"killed", "left", "starting"})


def picture_of(scene: Scene, facts: Facts, cast: Cast) -> Picture:
    """Draw each stage with its peers, and the tokens a second that each takes through it."""
    most = max((row.tokens_per_s for row in scene.rows), default=0.0)
    told = facts.status.pipeline if facts.status is not None else msgspec.UNSET
    booked = told if told is not msgspec.UNSET and told.made else None
    lines = []
    for stage in range(STAGES):
        lines.append(f"stage {stage}")
        if booked is not None:
            count = counted(booked.stages[stage].counted, "micro-batch")
            lines[-1] += f": {count} in the newest round"
        for row in scene.rows:
            if stage not in facts.spans.get(row.name, range(0)):
                continue
            rate = 0.0 if row.state in _GONE else row.tokens_per_s
            bar = "#" * round(_BAR * rate / most) if most else ""
            shown = f"{rate:.0f} tokens/s" if rate else ""
            speed = cast.parts[row.name].speed
            line = f"  {row.name:<8} {speed:<6} {row.state:<12} {bar:<{_BAR}} {shown}"
            lines.append(line.rstrip())
        if stage < STAGES - 1:
            lines.append("     |  activations down, gradients up")
    lines.append("")
    if booked is not None:
        lines.append(
            f"{counted(booked.made, 'micro-batch')} made | {booked.whole} counted in all stages"
            f" | {booked.redone} sent again | {booked.lost} lost"
        )
    return Picture((), (*lines, loss_line(scene)))
