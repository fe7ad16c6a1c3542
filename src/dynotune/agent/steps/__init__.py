"""Collect events of the program, and find steps in them."""
