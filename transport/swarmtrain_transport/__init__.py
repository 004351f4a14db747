"""Bytes between peers: the exchange's pure machines and the few files that do IO.

Nothing here imports torch. See ARCHITECTURE.md for the floors.
"""
