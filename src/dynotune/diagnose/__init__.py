"""Watches a command: one plain run for timing, one profiled run for attribution, and what each part alone reaches.

`observe` launches the runs and gathers an Observation, `attribute` brings the trace to the plain run's step,
`upper_bounds` runs parts alone, `conclusions` asks the rules of `doctor`. What a finding is, is not decided here.
"""
