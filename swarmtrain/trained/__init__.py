"""Use of what a run has trained: its model found, exported, written with, judged."""
