"""Faults of a simulated world, and the weathers that draw them."""
