"""Prepare a model for a few input shapes: captured graphs, checked against the eager model."""
