"""Settings and a command become a process tree and a Run."""
