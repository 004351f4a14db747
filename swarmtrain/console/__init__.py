"""Lines for people: log lines, news of a run, and a live view."""
