"""Training loops of other people as peers: `join`, `join_stages` and the swarm that a loop gets."""
