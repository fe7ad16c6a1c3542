"""Environment variables that slow a program down, one rule each, by the values that count and their effect."""

import re
import tomllib
from importlib.resources import files

import msgspec

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, Rule, machine_rule
from dynotune.doctor.machine import is_on, part_of_step, severity_on_gpu
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.diagnosis import Kind, Severity


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
        return value.strip().upper() in self.counts if isinstance(self.counts, list) else _TESTS[self.counts](value)


def _asks_for_debug(value: str) -> bool:
    """Tell whether TORCH_LOGS names a component at debug level (`+dynamo`, `all`), or writes out code."""
    parts = {part.strip() for part in value.split(",")}
    return any(part.startswith("+") for part in parts) or bool(parts & {"all", "output_code", "graph_code", "bytecode"})


def _workspace_bytes(value: str) -> int | None:
    """Return the size in bytes that a value names: 8.125 MiB for `:4096:2:16:8`; None for a value torch ignores."""
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
_FILE = files("dynotune.doctor").joinpath("variables.toml")
TABLES = msgspec.convert(tomllib.loads(_FILE.read_text("utf-8")), dict[str, tuple[Variable, ...]])


def _rule_of(variable: Variable) -> Rule:
    """Make the rule that fires if the variable has such a value, and offers to unset it."""

    @machine_rule(id=variable.id)
    def judge(view: ObservationView) -> Judgements:
        if variable.is_set(view):
            yield Judgement(
                kind=variable.kind,
                share=part_of_step(view, *variable.bound) if variable.kind == "speed" else None,
                severity=None if variable.bound else severity_on_gpu(view, variable.severity),
                otherwise=variable.severity,
                variables=[variable.name],
                evidence=list(variable.evidence),
                remedy=variable.remedy,
            )

    return judge


VARIABLES = tuple(map(_rule_of, TABLES["slows"]))
