"""Models in stages: who serves which stage, who keeps its state, and the rounds of all together."""
