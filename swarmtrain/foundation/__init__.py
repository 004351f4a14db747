"""Ground of all other packages: errors and their ids, events, files, folders, signals, numerics."""
