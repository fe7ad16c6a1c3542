"""Facts about machine, environment and processes, and samples over time. Reads, never writes."""
