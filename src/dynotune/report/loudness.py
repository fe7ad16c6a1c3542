"""How much dynotune says: set once by the command line, read where something is left out."""

from __future__ import annotations

import sys

quiet = False
"""Nothing but answers and errors: no progress, no hints."""
verbose = False


def be(*, quiet: bool, verbose: bool) -> None:
    """Set how much is said from here on."""
    globals().update(quiet=quiet, verbose=verbose)


def most(num: int) -> int:
    """Return how many rows a report shows: `num`, or all of them if `--verbose` was asked for."""
    return sys.maxsize if verbose else num
