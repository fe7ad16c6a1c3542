"""GPU code in files, and which GPU runs it."""
