"""The ledger: the verified chain of records, the view they fold to, and what follows from it."""
