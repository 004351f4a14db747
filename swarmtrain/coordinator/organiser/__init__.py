"""The organiser at the coordinator: orders over the local socket, and what is told in return."""
