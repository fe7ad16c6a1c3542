"""Memory of a process tree: pages that its processes share are counted once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from dynotune.schema.facts import Unknown, needed, or_unknown

_PSS = re.compile(rb"^Pss:\s+(\d+) kB$", re.MULTILINE)


@or_unknown()
def tree_bytes(pids: Iterable[int] | Unknown, root: Path = Path("/")) -> int | Unknown:
    """Proportional set sizes, summed. A process that has ended counts for nothing.

    The kernel walks the page tables of each process for it, a few milliseconds of a large one: not for runs whose time
    is what counts.

    Source: proc_pid_smaps(5).
    """
    total = 0
    for pid in needed(pids):
        try:
            found = _PSS.search((root / f"proc/{pid}/smaps_rollup").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            return Unknown(f"the memory of process {pid} cannot be read: {error.strerror}")
        # Of a process that is ending the file is empty.
        total += int(found[1]) * 1024 if found else 0
    return total or Unknown("no process of the tree was there to be asked for its memory")
