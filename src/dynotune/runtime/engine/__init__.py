"""A model made ready for a few input shapes: captured graphs, checked against the eager model."""
