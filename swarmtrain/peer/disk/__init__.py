"""Files of a peer: its state directory, its copy of the ledger, its spilled bytes."""
