"""The table of environment variables that slow a program down, with the values that count."""

import re

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.machine import is_on
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.data_file import table
from dynotune.schema.diagnosis import Kind, Severity


def _asks_for_debug(value: str) -> bool:
    """Tell whether TORCH_LOGS names a component at debug level (`+dynamo`, `all`), or writes out code."""
    parts = {part.strip() for part in value.split(",")}
    writes_code = bool(parts & {"all", "output_code", "graph_code", "bytecode"})
    return writes_code or any(part.startswith("+") for part in parts)


def _workspace_bytes(value: str) -> int | None:
    """Return the bytes that a value names: 8.125 MiB for `:4096:2:16:8`; None for a value torch ignores."""
    pairs = re.findall(r":(\d{1,9}):(\d{1,9})", value)
    if not pairs or "".join(f":{size}:{count}" for size, count in pairs) != value:
        return None
    return sum(int(size) * int(count) for size, count in pairs) * 1024


def _is_small_workspace(value: str) -> bool:
    size = _workspace_bytes(value)
    return size is not None and size < policy.DEFAULT_CUBLAS_WORKSPACE_BYTES


_TESTS = {
    "on": is_on,
    "off": lambda value: not is_on(value),
    "any": lambda value: True,
    "debug logs": _asks_for_debug,
    "small workspace": _is_small_workspace,
}


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of variables.toml, whose head explains the fields."""

    name: str
    counts: str | list[str]
    severity: Severity = "low"
    id: str = ""
    remedy: str = ""
    bound: tuple[str, ...] = ()
    kind: Kind = "speed"
    evidence: tuple[str, ...] = ()
    does: str = ""
    on_gpu: bool = False

    def is_set(self, view: ObservationView) -> bool:
        """Tell whether the variable has a value that counts."""
        value = view.variable(self.name)
        if value is None:
            return False
        if isinstance(self.counts, list):
            return value.strip().upper() in self.counts
        return _TESTS[self.counts](value)


TABLES = table(__package__, "variables.toml", dict[str, tuple[Variable, ...]])
