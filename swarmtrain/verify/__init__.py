"""Proofs that a state directory holds by itself, without anybody's word."""
