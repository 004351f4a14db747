"""Amounts for people."""


def human_bytes(count: float) -> str:
    """Say so many bytes in decimal units: ``0``, ``812 B``, ``1.29 MB``."""
    if count < 999.5:
        return f"{count:.0f} B" if count else "0"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        if count < 999.5:
            return f"{count:.3g} {unit}"
    return f"{count / 1000:.3g} TB"


def human_seconds(seconds: float) -> str:
    """Say how long something lasts: ``40 s``, ``12 min``, ``2 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
