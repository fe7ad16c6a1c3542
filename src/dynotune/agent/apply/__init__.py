"""Apply settings in the running program, and read them back from it."""
