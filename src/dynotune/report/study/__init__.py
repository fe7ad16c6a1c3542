"""A study in the terminal."""
