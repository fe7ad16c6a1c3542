"""Tasks of a live run: time a window, record a trace, isolate the loader, switch arms, check results."""
