"""A card: totals as a picture (SVG) to show to others, made on this machine alone.

It has no script, no link and no font of its own, asks nobody, and follows the viewer's light or
dark theme. Names of runs and peers are others' words: they are cleaned, cut and escaped.
"""

import html
from collections import Counter
from collections.abc import Sequence

from swarmtrain.console.lines import counted
from swarmtrain.console.units import human_bytes, human_seconds
from swarmtrain.credit.lifetime import Lifetime
from swarmtrain.foundation.errors import cleaned

_RUNS = 4
"""Runs that have a line of their own: those with most rounds."""

_NAME_CHARS = 20
_LINE = 26

_STYLE = (
    "text{font-family:system-ui,sans-serif;fill:#1c1f24}"
    ".card{fill:#fbfbf9;stroke:#c9ccd1}.soft{fill:#5b626c;font-size:14px}"
    ".big{font-size:34px;font-weight:700}.head{font-size:16px;font-weight:600}.row{font-size:15px}"
    "@media(prefers-color-scheme:dark){text{fill:#eceef1}.card{fill:#16191d;stroke:#3a4048}"
    ".soft{fill:#a3abb5}}"
)


def drawn(kept: Sequence[Lifetime]) -> str:
    """Draw totals as an SVG image, 480 wide.

    Args:
        kept: keys in runs, one at least.
    """
    tokens: Counter[str] = Counter()
    for one in kept:
        tokens[one.unit] += one.tokens or 0
    unit, most = tokens.most_common(1)[0]
    rounds = counted(sum(one.rounds for one in kept), "round")
    runs = counted(len({one.run_key for one in kept}), "run")
    hours = human_seconds(sum(one.seconds for one in kept))
    moved = human_bytes(sum(one.bytes_up + one.bytes_down for one in kept))
    lines = [(36, "head", "swarmtrain: models trained together"),
             (84, "big", f"{_short(most)} {unit}" if most else rounds),
             (112, "row", f"merged in {rounds} of {runs}")]  # fmt: skip
    y = 124
    for one in sorted(kept, key=lambda one: -one.rounds)[:_RUNS]:
        y += _LINE
        its = counted(one.rounds, "round")
        lines.append((y, "row", f"{_name(one.run)}, as {_name(one.name)}: {its}"))
    lines.append((y + 34, "soft", f"{hours} and {moved} moved, by the machine's own word"))
    texts = "".join(
        f'<text x="28" y="{at}" class="{kind}">{html.escape(text)}</text>'
        for at, kind, text in lines
    )
    title = html.escape(f"{rounds} of {runs}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="480" height="{y + 58}" role="img" '
        f'viewBox="0 0 480 {y + 58}"><title>{title}</title><style>{_STYLE}</style>'
        f'<rect class="card" x="1" y="1" width="478" height="{y + 56}" rx="14"/>{texts}</svg>\n'
    )


def _name(text: str) -> str:
    found = cleaned(text)
    return found if len(found) <= _NAME_CHARS else f"{found[: _NAME_CHARS - 1]}…"


def _short(count: int) -> str:
    """Say a large number: ``12.3 million``."""
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,}"
