"""Numbers, times, sizes and names as people read them.

`words` has a function for each kind of value, `exit_codes` says how a process ended, `reasons` has the
sentences of reasons that are codes, `steps` describes a step, `quoting` quotes and bounds text that anyone
may have chosen, `signs` has what stands for signs that a terminal lacks, `largest_words` writes runs of a
planned value, `time_spans` reads lengths of time, and `units` has a value's unit by the end of its name.
`report` builds tables and pages.
"""

__all__ = [
    "exit_codes",
    "largest_words",
    "quoting",
    "reasons",
    "signs",
    "steps",
    "time_spans",
    "units",
    "words",
]
