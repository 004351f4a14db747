"""The training side of a peer: inner steps, outcomes, and the state they make."""
