"""Pairs of runs, their statistics and verdicts."""
