"""Credit for a peer's work: totals for life, receipts of rounds, a card."""
