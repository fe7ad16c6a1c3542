"""Codes of the reasons on which the parent acts, with the values of `schema.reasons.Reason`.

An event with a code has beside it only the words that the reason's sentence needs; the parent writes the
sentence.
"""

HAS_ALREADY = "has-already"
NO_TORCH = "no-torch"
PROGRAM_PROFILES = "program-profiles"
OTHER_PROFILER = "other-profiler"
PROGRAM_ENDED = "program-ended"
