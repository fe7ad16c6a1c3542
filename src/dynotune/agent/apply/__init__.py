"""Settings, applied in the running program and read back from it."""
