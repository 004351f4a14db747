"""Simulated pipelines: the production machines of peers, sources and coordinator, with faults."""
