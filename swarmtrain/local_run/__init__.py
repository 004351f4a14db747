"""A run on this machine: its processes started and heard, their links, and their certain end."""
