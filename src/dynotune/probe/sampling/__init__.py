"""Samples beside a run, and what they say of a window."""
