"""The coordinator's machine: who is here, what is decided in an op, and when."""
