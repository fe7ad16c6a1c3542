"""Keep environment variables at their values against the program's writes.

The agent intercepts writes in Python. C code (`getenv`) and children then see the kept value, whatever the
program writes. `os.environ` shows the same value, with two necessary exceptions. A variable that is kept
unset shows the value that the program wrote, since reading that value back must not raise KeyError. A deleted
variable disappears from `os.environ`, since `os.environ.clear()` would otherwise never end.
"""

from __future__ import annotations

import functools
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..core.annotations import Name

_putenv = os.putenv
_unsetenv = os.unsetenv


class KeptVariables:
    """The kept variables of this process; None keeps a variable unset."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.written: dict[bytes, bytes | None] = {}
        self._installed = False

    def add(self, values: dict[str, str | None]) -> None:
        for name, value in values.items():
            key = os.fsencode(name)
            self.values[key] = None if value is None else os.fsencode(value)
            self._establish(key, self.values[key])
        if not self._installed:
            self._installed = True
            self._cover_putenv()
            self._cover_environ()

    def program_wrote(self, name: str) -> str:
        """Return what the program did to a kept variable, for the read-back; "" if it did nothing."""
        key = os.fsencode(name)
        if key not in self.written:
            return ""
        value = self.written[key]
        if value is None:
            return "the program removed it; it was kept"
        detail = "the program set it to %s; it was kept" % os.fsdecode(value)
        if self.values.get(key) is None and key in getattr(os.environ, "_data", {}):
            detail += " out of the process's environment, but Python code that reads os.environ still sees it"
        return detail

    def _establish(self, key: bytes, value: bytes | None) -> None:
        # A parent may have passed on a copy of its os.environ, with values that it was not allowed to set.
        data: dict[bytes, bytes] = vars(os.environ)["_data"]
        if data.get(key) == value:
            return
        if value is None:
            _unsetenv(key)
            del data[key]
        else:
            _putenv(key, value)
            data[key] = value

    def _cover_putenv(self) -> None:
        kept, written = self.values, self.written

        @functools.wraps(_putenv)
        def keep_putenv(name: Name, value: Name, /) -> None:
            key = os.fsencode(name)
            if key not in kept:
                return _putenv(name, value)
            # Raise the audit event of the real putenv, so that observers still see the attempt.
            sys.audit("os.putenv", key, os.fsencode(value))
            written[key] = os.fsencode(value)
            return None

        @functools.wraps(_unsetenv)
        def keep_unsetenv(name: Name, /) -> None:
            key = os.fsencode(name)
            if key not in kept:
                return _unsetenv(name)
            sys.audit("os.unsetenv", key)
            written[key] = None
            return None

        # os.environ and os.environb look up these functions in the module at every write.
        os.putenv, os.unsetenv = keep_putenv, keep_unsetenv

    def _cover_environ(self) -> None:
        environ: Any = type(os.environ)
        kept = self.values
        setitem = environ.__setitem__

        @functools.wraps(setitem)
        def keep_setitem(mapping: Any, key: Any, value: Any) -> None:
            setitem(mapping, key, value)
            encoded = mapping.encodekey(key)
            if kept.get(encoded) is not None:
                mapping._data[encoded] = kept[encoded]

        environ.__setitem__ = keep_setitem


kept_variables = KeptVariables()
"""The variables that are kept in this process."""
