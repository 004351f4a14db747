"""A round told from the ledger, for people."""
