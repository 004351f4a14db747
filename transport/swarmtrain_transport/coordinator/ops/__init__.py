"""Ops: planned, cut into slices, heard, decided, and their states agreed upon."""
