"""Schema objects in, text out."""
