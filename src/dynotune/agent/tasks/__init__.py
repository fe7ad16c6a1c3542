"""What a live run is asked to do: time a window, record a trace, isolate the loader, switch arms, check results."""
