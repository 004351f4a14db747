"""Training text: found, cut into pieces named by hash, and made into batches."""
