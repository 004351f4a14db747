"""A torchrun job as one peer: its ranks share the work, and none holds the whole model."""
