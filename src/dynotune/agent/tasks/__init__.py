"""Carry out tasks of a live run: time a window of steps, record a trace, isolate the loader, switch settings, check
results."""
