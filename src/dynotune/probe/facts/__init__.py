"""Facts of machine, environment and torch."""
