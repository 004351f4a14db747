"""The peer's machine: its place in the run, catching up, and its copy of the ledger."""
