"""The door of the coordinator: bounds strangers and members, and decides who may come in."""
