"""Bulk bytes by hash: kept, served, asked for, and put together to a state."""
