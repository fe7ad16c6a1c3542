"""A line of points between a good and a bad end, and how the command gets to each."""

from collections.abc import Sequence
from typing import Protocol

from dynotune.schema.bisection import BisectionKind, BisectionPoint
from dynotune.schema.errors import DynotuneError
from dynotune.schema.setting import Setting


class NotMade(DynotuneError):
    """A point cannot be made here: a version has no wheel, for example. It is skipped."""


class Line(Protocol):
    """Points from good to bad. `not_switched`: differences of the ends that no point has. `cautions`: why the
    command may fail at a point."""

    @property
    def kind(self) -> BisectionKind: ...

    @property
    def points(self) -> Sequence[BisectionPoint]: ...

    @property
    def not_switched(self) -> Sequence[str]: ...

    @property
    def cautions(self) -> Sequence[str]: ...

    def settings(self, point: int) -> list[Setting]:
        """Return the settings under which the command is at a point.

        Raises NotMade.
        """
        ...

    def changed(self, before: int, after: int) -> list[str]:
        """Return lines that say what lies between two points."""
        ...

    def next_command(self, after: int) -> list[str]:
        """Return the ends of a bisection within the step that leads to a point; [] if there is none."""
        ...
