"""Carry out tasks of a live run: time a window, record a trace, isolate the loader, switch settings, check results."""
