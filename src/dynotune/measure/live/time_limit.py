"""Limit the time of one run of the command."""

import math

from dynotune.schema.run import LIMIT_S, RunSpec

# A run of known length may take longer than its pilot: another candidate, cold pages, a busy machine.
PATIENCE = 4.0
PATIENCE_S = 60.0


def limit_s(run: RunSpec, run_s: float | None) -> float:
    """Return the time limit of one run; `run_s`: its expected duration (s), None for a pilot."""
    if run.timeout_s is not None:
        return run.timeout_s
    if run_s is None:
        return LIMIT_S
    # No pilot shows the duration of a program that runs to its own end.
    return math.inf if run.run_to_end else PATIENCE * run_s + PATIENCE_S
