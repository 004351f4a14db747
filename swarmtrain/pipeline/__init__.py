"""Pipelines on tensors: a model as blocks, spans of it, and activations on the way."""
