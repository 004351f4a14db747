"""Chaos: real processes of its own, broken at random from a seed, and checked for what holds."""
