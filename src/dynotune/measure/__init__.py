"""Pairs, intervals, verdicts."""
