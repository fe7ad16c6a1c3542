"""How much dynotune says: set once by the command line, read where something is left out."""

import sys

said = {"quiet": False, "verbose": False}
"""Quiet: nothing but answers and errors. Verbose: also the rows that reports leave out."""


def most(num: int) -> int:
    """Return how many rows a report shows: `num`, or all of them if `--verbose` was asked for."""
    return sys.maxsize if said["verbose"] else num
