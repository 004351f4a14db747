"""The demo of a pipeline: a model in stages, served by small peers of two speeds."""
