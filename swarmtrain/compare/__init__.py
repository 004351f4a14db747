"""`swarmtrain compare`: strategies side by side, all replicas of a run in one process."""
