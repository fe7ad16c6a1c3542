"""A result that grows: several processes may add to one file, over several sittings."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.provenance import describe


def read(out: Path) -> dict[str, Any]:
    """What is there; of a new file, on what and by which command it comes to be."""
    return dict(json.loads(out.read_text())) if out.is_file() else describe()


@contextlib.contextmanager
def opened(out: Path) -> Iterator[dict[str, Any]]:
    """The result, to be changed: read, and written whole, while no other process does either."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_name(out.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = read(out)
        yield result
        partial = out.with_name(out.name + ".partial")
        partial.write_text(json.dumps(result, indent=1) + "\n")
        partial.replace(out)
