"""The member side of an op: contributing, reducing, receiving, auditing."""
