"""Batches of a loader on the device before they are needed."""
