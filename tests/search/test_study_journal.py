"""What a study's journal says of an attempt's time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from dynotune.report.study import spent_s
from dynotune.schema.study import Attempt, Study
from dynotune.search import study_journal
from dynotune.search.study_journal import StudyJournal

from ..fakes import of_run

STUDY = of_run(Study, id="s", budget_s=60.0)


class Clock:
    """The clock of the day, which somebody sets, and the monotonic one."""

    def __init__(self) -> None:
        self.day, self.monotonic_s = datetime(2026, 1, 1, 12, tzinfo=UTC), 1000.0

    def now(self, zone: object) -> datetime:
        return self.day

    def monotonic(self) -> float:
        return self.monotonic_s

    def goes_on(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.day += timedelta(seconds=seconds)


@pytest.mark.parametrize("by_days", [-4000, -1, 0, 1, 4000])
def test_journal_counts_an_attempts_own_time_when_the_clock_is_set(tmp_path, monkeypatch, by_days):
    clock = Clock()
    monkeypatch.setattr(study_journal, "datetime", clock)
    monkeypatch.setattr(study_journal, "time", clock)
    journal = StudyJournal(STUDY, tmp_path / "study.json")
    clock.goes_on(20)
    clock.day += timedelta(days=by_days)
    journal.waited(5)
    clock.goes_on(15)
    journal.end("done")
    assert spent_s(journal.document) == 30.0
    assert journal.document.attempts[-1].ended_by == "done"


def test_an_attempt_took_no_time_when_it_seems_to_have_ended_before_it_began():
    backwards = Attempt("2026-01-01T10:00:00+00:00", "2025-01-01T10:00:00+00:00", "user")
    minute = Attempt("2026-01-02T10:00:00+00:00", "2026-01-02T10:01:00+00:00", "done")
    assert spent_s(of_run(Study, id="s", budget_s=60.0, attempts=[backwards, minute])) == 60.0
