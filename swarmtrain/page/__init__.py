"""The run as a page: what browsers, programs and Prometheus are told, computed once."""
