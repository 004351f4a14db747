"""A peer's side of a pipeline: it makes, receives, sends on and counts micro-batches."""
