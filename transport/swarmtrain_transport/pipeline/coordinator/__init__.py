"""The coordinator's side of pipelines: who serves what, when a round ends, and the books of it."""
