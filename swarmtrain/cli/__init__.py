"""The command line. One file per command; each imports its machinery when it is called."""
