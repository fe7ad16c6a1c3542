"""Carry out tasks of a live run: time steps, record a trace, isolate the loader, switch settings, check
results."""
