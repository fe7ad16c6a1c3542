"""A rule: what it declares about itself, and the function that judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.diagnosis import Finding
from dynotune.schema.setting import Setting

Scope = Literal["machine", "program", "watch"]
Judge = Callable[[ObservationView], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Call it with a view to get its findings.

    Args:
        scope: `machine` needs facts alone; `program` needs a command that was watched; `watch` one that runs.
        sees, costs, wrong_when: prose for readers: what the rule looks at, what the finding costs, when it is wrong.
        candidates: settings that the rule may offer: `knob=value`, or `knob` alone if the rule computes the value.
        explains: ids of more general findings of which this one is the reason.
    """

    id: str
    scope: Scope
    title: str
    sees: str
    costs: str
    wrong_when: str
    candidates: tuple[str, ...]
    explains: tuple[str, ...]
    judge: Judge

    @property
    def family(self) -> str:
        """The name of the module that defines the rule."""
        return self.judge.__module__.rpartition(".")[2]

    def declares(self, setting: Setting) -> bool:
        """Tell whether `setting` is among the declared candidates."""
        return setting.knob in self.candidates or str(setting) in self.candidates

    def __call__(self, view: ObservationView) -> Iterable[Finding]:
        """Judge.

        Raises:
            Missing: a fact that the rule needs is not known.
        """
        return self.judge(view)


def rule(
    id: str,
    scope: Scope,
    *,
    title: str,
    sees: str,
    costs: str,
    wrong_when: str,
    candidates: Iterable[Setting | str] = (),
    explains: Iterable[str] = (),
) -> Callable[[Judge], Rule]:
    """Make a `Rule` of the function below. Its module lists the rule in `RULES`."""
    return lambda judge: Rule(
        id, scope, title, sees, costs, wrong_when, tuple(map(str, candidates)), tuple(explains), judge
    )
