"""Runs of the command: pilots, windows, recordings, screening."""
