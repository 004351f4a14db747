"""Simulated runs in stages: whole production peers, their training threads and their coordinator,
under a virtual clock."""
