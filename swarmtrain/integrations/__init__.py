"""Other people's training loops as peers: transformers' Trainer, Lightning, accelerate.

Each module needs its library and says so in one error; none is imported before it is asked for.
"""
