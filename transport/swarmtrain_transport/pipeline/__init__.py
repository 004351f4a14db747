"""Pipelines: micro-batches that travel through peers of which none holds the whole model."""
