"""The differing facts of two files of `doctor`: environment variables and versions of packages."""

from collections.abc import Sequence

from dynotune import knobs
from dynotune.bisect.packages import Environments
from dynotune.doctor import differences
from dynotune.schema import redaction
from dynotune.schema.bisection import BisectionKind, BisectionPoint
from dynotune.schema.diagnosis import Difference
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts, Unknown, Value
from dynotune.schema.setting import UNSET, Setting


class Differences:
    """A line on which each point makes one more of the differences; the first point makes none."""

    kind: BisectionKind = "differences"
    cautions: tuple[str, ...] = ()

    def __init__(self, good: Facts, bad: Facts, environments: Environments | None) -> None:
        """Raise UsageError: no difference can be made here."""
        rows = differences(good, bad)
        self._made = [row for row in rows if _can_be_made(row)]
        self._environments = environments
        self.not_switched: Sequence[str] = [_not_made(row) for row in rows if row not in self._made]
        if not self._made:
            others = "; ".join(self.not_switched[:6]) or "none"
            raise UsageError(
                f"No difference of the two files can be made here. Differences: {others}.",
                hint="Versions of packages can, and environment variables that are known to tune.",
            )
        first = BisectionPoint(name="good", title="the values of the good file")
        self.points = [first, *(BisectionPoint(name=row.fact, title=_text(row)) for row in self._made)]

    def settings(self, point: int) -> list[Setting]:
        chosen: list[Setting] = []
        versions: dict[str, str] = {}
        for index, row in enumerate(self._made):
            value = row.there if index < point else row.here
            if row.fact.startswith("env."):
                chosen.append(knobs.parse(f"{row.fact}={UNSET if value is None else value}"))
            else:
                versions[_package_of(row.fact)] = _released(value)
        if versions and self._environments is not None:
            chosen += self._environments.settings(versions)
        return chosen

    def changed(self, before: int, after: int) -> list[str]:
        return [_text(row) for row in self._made[before:after]]

    def next_command(self, after: int) -> list[str]:
        return []


def needs_packages(good: Facts, bad: Facts) -> bool:
    """Tell whether a difference that can be made is a package's version."""
    return any(_can_be_made(row) and _package_of(row.fact) for row in differences(good, bad))


def _can_be_made(row: Difference) -> bool:
    values = (row.here, row.there)
    if any(isinstance(value, Unknown) for value in values):
        return False
    if row.fact.startswith("env."):
        return not any(redaction.MARK in str(value) or _must_be_typed(row.fact, value) for value in values)
    if not _package_of(row.fact) or None in values:
        return False
    return _released(row.here) != _released(row.there)


def _must_be_typed(fact: str, value: Value | Unknown | None) -> bool:
    """Tell whether a variable or its value may do more than tune, such as load code: the file is anyone's."""
    return knobs.must_be_typed(Setting(fact, UNSET if value is None else str(value)))


def _released(value: Value | Unknown | None) -> str:
    """Return a version without its build, such as +cu118: the package index has one build of a version."""
    return str(value).partition("+")[0]


def _package_of(fact: str) -> str:
    return "torch" if fact == "torch.version" else fact.partition("package.")[2]


def _text(row: Difference) -> str:
    here, there = (
        "unset" if value is None else "unknown" if isinstance(value, Unknown) else str(value)
        for value in (row.here, row.there)
    )
    text = f"{row.fact}: {here} → {there}"
    if _can_be_made(row) and _package_of(row.fact) and "+" in here + there:
        text += f" (installed: {_released(row.here)} → {_released(row.there)}, as the index builds them)"
    return text


def _not_made(row: Difference) -> str:
    """Say of a difference that is not switched why it is not, where the file could have asked for it."""
    values = (row.here, row.there)
    if any(isinstance(value, Unknown) for value in values):
        return _text(row)
    if row.fact.startswith("env."):
        return f"{_text(row)} (not known to tune only: --set tries it)"
    if _package_of(row.fact) and None not in values:
        return f"{_text(row)} (two builds of one version: the package index has one)"
    return _text(row)
