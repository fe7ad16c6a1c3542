"""Habits: common mistakes that a source line of the program, or the function that the line calls, shows by
itself."""

import re

import msgspec

from dynotune.doctor import hot_lines, policy
from dynotune.doctor.declaration import Judgement, Judgements, Rule, rule
from dynotune.doctor.observation_view import ObservationView
from dynotune.doctor.periodic_work import periodic
from dynotune.schema.data_file import table
from dynotune.schema.host import Line
from dynotune.schema.timing import PeriodicKind

_GENERAL = ("host", "loader", "loader-jitter", "epoch-jitter")


class _Habit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One habit of habits.toml, whose head explains the fields. A line must match one of several patterns."""

    title: str
    what: str
    remedy: str
    wrong_when: str
    example: str
    calls: str | list[str] = ""
    text: str | list[str] = ""
    at: str | list[str] = ""
    in_steps: PeriodicKind | None = None
    least: float = policy.LEAST_SHARE

    def is_at(self, line: Line) -> bool:
        """Return whether the source line shows the habit."""
        if self.at and not _found(self.at, line.text):
            return False
        if self.calls and _found(self.calls, f"{line.callee}\n{line.leaf}"):
            return True
        return bool(self.text) and not line.callee and _found(self.text, line.text)


def _found(pattern: str | list[str], text: str) -> bool:
    return (
        re.search(pattern if isinstance(pattern, str) else "|".join(pattern), text, re.MULTILINE) is not None
    )


def _rule_of(id: str, habit: _Habit) -> Rule:
    @rule(
        family="lines",
        id=id,
        title=habit.title,
        sees="The rule looks for source lines at which dynotune's stack sampler found the loader's workers, "
        f"or the thread that runs the steps, doing this work: {habit.what[0].lower()}{habit.what[1:]}.",
        costs="The cost is the source line's share of the time between operators, or of the wait for the "
        "loader; with "
        "a device, at most the time for which the device waits for the host.",
        wrong_when=habit.wrong_when,
        example=habit.example,
        explains=_GENERAL,
    )
    def judge(view: ObservationView) -> Judgements:
        found = [*hot_lines.of_python(view, habit.is_at), *hot_lines.of_loader(view, habit.is_at)]
        if habit.in_steps is not None:
            some = periodic(view, habit.in_steps)
            rare = [(Line(function=one.function, text=one.text, num=0), one.share) for one in some]
            # Steps that save may do other work as well, so the samples of saving itself are more exact.
            seen = hot_lines.known(lambda view: hot_lines.of_thread(view, habit.is_at), view)
            found = max(found, seen or rare, key=lambda lines: sum(part for _, part in lines))
        share = min(1.0, sum(part for _, part in found))
        if share < habit.least:
            return
        yield Judgement(
            claim=f"{habit.what} takes {share:.0%} of a step.",
            share=share,
            evidence=hot_lines.told(found),
            where=hot_lines.place(found),
            remedy=habit.remedy,
        )

    return judge


HABITS = tuple(
    _rule_of(id, habit) for id, habit in table(__package__, "habits.toml", dict[str, _Habit]).items()
)
