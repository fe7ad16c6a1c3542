"""Timed starts, caches and GPU code in the terminal."""
