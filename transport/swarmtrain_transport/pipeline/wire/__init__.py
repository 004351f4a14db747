"""Names, messages and orders of pipelines, and their bytes on both lanes."""
