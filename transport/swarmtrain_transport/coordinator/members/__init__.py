"""Members: who is here, silent, leaving, convicted; what each holds and may claim."""
