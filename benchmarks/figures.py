"""What the benchmarks of this folder have in common: their options, their figures, and how much a
process takes. Those in folders of their own have a rig for it."""

import argparse
import json
import os
import resource
from pathlib import Path
from typing import Any


def parser_of(words: str | None) -> argparse.ArgumentParser:
    """Options that every figure has, under these words. A script adds its own."""
    parser = argparse.ArgumentParser(
        description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def told(figures: dict[str, Any], *, as_json: bool) -> int:
    """Print figures, "holds" among them, and return the exit status: 0 where the bars hold."""
    print(json.dumps(figures) if as_json else figures)
    return 0 if figures["holds"] else 1


def rounded(value: Any) -> Any:
    """Figures with three places."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def cpu_s(pid: int) -> float:
    """Time of processors that a process has had, in seconds."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Memory of a process in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def resident() -> int:
    """Bytes of this process in memory, without pages of files."""
    _, _, rest = Path("/proc/self/status").read_text().partition("RssAnon:")
    return 1024 * int(rest.split()[0])
