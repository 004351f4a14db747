"""The peer: a shell around the machines, a driver around a strategy, and what joins them."""
