"""Strategies: when peers exchange, what they send, what they do with the result. One paper, one
file; each implements `strategies.base.Strategy`."""
