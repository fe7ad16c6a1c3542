"""Apply settings in the running program, and read the settings back from the program."""
