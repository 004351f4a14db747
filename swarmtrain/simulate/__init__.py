"""Deterministic simulation: the production machines under a virtual clock, with faults."""
