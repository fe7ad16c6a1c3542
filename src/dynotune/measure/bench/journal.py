"""Own a document while it is made: save each change before anybody sees the new document."""

import threading
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from dynotune.schema import document
from dynotune.schema.comparison import Pair, Voided
from dynotune.schema.startup import StartBlock, VoidBlock
from dynotune.schema.study import Trial

D = TypeVar("D", bound=msgspec.Struct)

_LIST_OF: dict[type, str] = {
    Trial: "trials",
    Pair: "pairs",
    Voided: "voided",
    StartBlock: "blocks",
    VoidBlock: "voided",
}
"""The list of a document that holds what was measured."""


class Journal(Generic[D]):
    """The only owner of a document; others ask for the present state each time, and keep none.

    Several threads may write. A change of the document that depends on the present state happens under
    `lock`.

    Args:
        document: the document so far.
        file: where each state is stored; None stores nothing, for documents that another process keeps.
    """

    def __init__(self, document: D, file: Path | None = None) -> None:
        self.lock = threading.RLock()
        self._document, self._file = document, file

    @property
    def document(self) -> D:
        return self._document

    def keep(self, document_: D) -> D:
        """Store a new state of the document, and return it.

        Raises CannotRunHere: the disk is full or read-only; the state before stays, on disk and here.
        """
        with self.lock:
            if self._file is not None:
                document.write(self._file, document_)
            self._document = document_
            return document_

    def update(self, **changes: object) -> D:
        """Change fields of the document, and return it. Raises CannotRunHere: as `keep`."""
        with self.lock:
            return self.keep(msgspec.structs.replace(self.document, **changes))

    def num(self, kind: type) -> int:
        """Return how many trials, pairs, blocks of starts or void ones the document has."""
        return len(getattr(self.document, _LIST_OF[kind]))

    def part(self, name: str) -> "Part":
        """Return the journal of a document that is the field `name` of this one."""
        return Part(self, name)

    def add(self, measured: msgspec.Struct) -> D:
        """Add a trial, a pair, a block of starts or a void one, and return the document. CannotRunHere: as
        `keep`."""
        name = _LIST_OF[type(measured)]
        with self.lock:
            return self.update(**{name: [*getattr(self.document, name), measured]})


class Part(Journal[Any]):
    """The journal of a document within another one, which is stored with the whole."""

    def __init__(self, whole: Journal[Any], name: str) -> None:
        self.lock, self._whole, self._name = whole.lock, whole, name

    @property
    def document(self) -> Any:
        return getattr(self._whole.document, self._name)

    def keep(self, document_: Any) -> Any:
        self._whole.update(**{self._name: document_})
        return document_
