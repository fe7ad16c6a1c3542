"""Simulate a CUDA device: programs run on it without memory or computation, and their allocations are
recorded."""
