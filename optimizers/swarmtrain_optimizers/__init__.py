"""Arithmetic on tensors: codecs, outer and inner optimizers, strategies. No sockets."""
