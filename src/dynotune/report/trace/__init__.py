"""Traces and memory snapshots in the terminal."""
