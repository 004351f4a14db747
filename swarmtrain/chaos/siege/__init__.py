"""A chaos with one hostile member among honest peers, and the judgement of what it could do."""
