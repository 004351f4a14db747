"""The coordinator: lets peers in, keeps the order of events, never touches a weight.

Nothing here imports torch or numpy, not transitively either; a test follows the imports.
"""
