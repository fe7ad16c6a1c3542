"""Code places of the stacks that the allocator recorded with its events."""

from typing import Any

from dynotune.schema.errors import UsageError
from dynotune.schema.trace_summary import Place
from dynotune.trace.facts.source_files import is_of_library

MODULE_FILE = "<dynotune module>"
"""File of the functions through which the agent calls modules; each is named by its module's path."""


class Stacks:
    """Code places of recorded stacks. Many events share one list of frames, and each list is examined once.

    Args:
        name: name of the file, for errors.
        budget: most frames that a file of this size can contain.
    """

    def __init__(self, name: str, budget: int) -> None:
        self._name, self._budget = name, budget
        # The lists of frames are kept with their results: otherwise a new list could get the id of a deleted
        # list.
        self._known: dict[int, tuple[Any, tuple[Place, str]]] = {}

    def look(self, frames: Any) -> tuple[Place, str]:
        """Return the user's innermost function, else the innermost Python function; "" if there is none.

        The second value is the path of the innermost module whose forward pass is in the stack; "" if not
        recorded.
        """
        if not frames:
            return Place(), ""
        if (known := self._known.get(id(frames))) is None:
            known = self._known[id(frames)] = (frames, self._read(frames))
        return known[1]

    def _read(self, frames: Any) -> tuple[Place, str]:
        innermost = Place()
        found = None
        module = ""
        for file, line, function in self._fields(frames):
            if file == MODULE_FILE:
                module = module or printable(function)
                continue
            if found is not None or not (file.endswith(".py") or file.startswith("<")):
                continue
            place = Place(function=printable(f"{file}({line}): {function}"))
            innermost = innermost if innermost.function else place
            if not is_of_library(file):
                found = place
        return found or innermost, module

    def _fields(self, frames: Any) -> list[tuple[str, int, str]]:
        try:
            self._budget -= len(frames)
            fields = [(frame["filename"], frame["line"], frame["name"]) for frame in frames]
        except (TypeError, KeyError):
            self._budget = -1
        if self._budget < 0 or not all(
            isinstance(file, str) and isinstance(line, int) and isinstance(function, str)
            for file, line, function in fields
        ):
            raise UsageError(f"{self._name} is no memory snapshot: a stack holds something else than frames.")
        return fields


def printable(text: str) -> str:
    """Return `text` without halves of surrogate pairs, which a pickle can contain but JSON cannot."""
    return text.encode(errors="replace").decode()
