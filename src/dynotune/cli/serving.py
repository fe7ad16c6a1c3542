"""Serve a live page beside the work, and say its address."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynotune.report import Progress
    from dynotune.watch import Source


@contextlib.contextmanager
def served(address: str | None, token: str | None, source: Source) -> Iterator[None]:
    """Serve the page of a source at an address while the block runs.

    Raises:
        UsageError: no such address, or an address beyond loopback without a token.
        CannotRunHere: the port is taken or not permitted.
    """
    if address is None:
        yield
        return
    from dynotune.watch import Server

    server = Server(address, source, token=token)
    try:
        # A token that dynotune made is shown only here. A token that the user gave is not shown, because the
        # user knows it.
        print(f"dynotune: serving {server.url if token is None else server.place}", file=sys.stderr)
        yield
    finally:
        server.close()


@contextlib.contextmanager
def measured(address: str | None, token: str | None, progress: Progress) -> Iterator[None]:
    """Serve the page of the study or comparison that the block measures, as `served` does."""
    if address is None:
        yield
        return
    from dynotune.watch import DocumentSource, DocumentWatcher

    def find() -> DocumentWatcher | None:
        return None if progress.folder is None else DocumentWatcher(progress.folder, lambda: progress.doing)

    with served(address, token, DocumentSource(find)):
        yield


def is_document(folder: Path) -> bool:
    """Tell whether a folder is a study's or a comparison's."""
    from dynotune.watch import DocumentWatcher

    return DocumentWatcher.file_of(folder) is not None
