"""Hold how much dynotune prints: the command line sets it once, reports read it before they leave something out."""

import sys

said = {"quiet": False, "verbose": False}
"""Quiet: nothing but answers and errors. Verbose: also the rows that reports leave out."""


def most(num: int) -> int:
    """Return how many rows a report shows: `num`, or all rows with `--verbose`."""
    return sys.maxsize if said["verbose"] else num


def is_brief() -> bool:
    """Tell whether an answer is cut to a screen: on a terminal, without `--verbose`. A pipe or file gets all of it."""
    return sys.stdout.isatty() and not said["verbose"]
