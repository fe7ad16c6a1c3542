"""Store how much dynotune prints. The command line sets this once; reports read it before they leave rows
out."""

import sys

said = {"quiet": False, "verbose": False, "plain": False}
"""quiet: print only answers and errors. verbose: also print the rows that reports otherwise leave out. plain:
draw nothing, set nothing in columns, and redraw no line."""


def most(num: int) -> int:
    """Return how many rows a report shows: `num`, or all rows with `--verbose`."""
    return sys.maxsize if said["verbose"] else num


def is_brief() -> bool:
    """Tell whether an answer is cut to a screen: on a terminal, without `--verbose`. Pipes and files get all
    of it."""
    return sys.stdout is not None and sys.stdout.isatty() and not said["verbose"]


def is_verbose() -> bool:
    """Tell whether reports show what they otherwise leave out."""
    return said["verbose"]


def is_plain() -> bool:
    """Tell whether reports are sentences alone, for a screen reader."""
    return said["plain"]
