"""Formats of bytes and letters: frames, messages, records."""
