"""State directory of the coordinator: the decision log, invites and keys, and what run it is of."""
