"""The run file: its settings, defaults, and what they must keep to."""
