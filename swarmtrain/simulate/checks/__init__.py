"""Checks of what must hold in a simulated world."""
