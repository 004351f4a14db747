"""A run before it is started, forecast from its run file; and beside it, the run as it was."""
