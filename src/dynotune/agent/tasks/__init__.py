"""What the plan asks for: a timed window, a trace, ceilings, screening."""
