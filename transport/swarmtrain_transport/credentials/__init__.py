"""Invites and keys: the credentials that a peer shows at the door."""
