"""Collect events of the program, and find the program's steps from the events."""
