"""Train one model together: ordinary computers, ordinary internet links."""

__version__ = "0.1.0"
