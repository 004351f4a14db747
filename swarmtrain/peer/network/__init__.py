"""The network side of a peer: one thread, one loop, both lanes."""
