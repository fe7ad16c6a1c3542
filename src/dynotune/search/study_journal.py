"""The journal of a study: each state has the time of the present attempt, and other hosts see it too."""

import contextlib
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from dynotune.measure.bench import Journal
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.study import Attempt, Study
from dynotune.search.bench import Hosts

EndedBy = Literal["done", "user", "error", ""]


class StudyJournal(Journal[Study]):
    """Stores a study after each change, on disk and for `hosts`."""

    def __init__(self, study: Study, file: Path, hosts: Hosts | None = None) -> None:
        super().__init__(study, file)
        self._earlier, self._hosts = study.attempts, hosts
        self._began, self._began_s, self._ended_by = datetime.now(UTC), time.monotonic(), ""

    def waited(self, seconds: float) -> None:
        """Leave the time out that the attempt has waited for other programs."""
        self._began += timedelta(seconds=seconds)
        self._began_s += seconds

    def keep(self, document_: Study) -> Study:
        # The clock of the day may be set meanwhile, and the time of an attempt counts against the budget.
        ended_ = self._began + timedelta(seconds=time.monotonic() - self._began_s)
        began, ended = (moment.isoformat(timespec="seconds") for moment in (self._began, ended_))
        with self.lock:
            kept = super().keep(
                replace(document_, attempts=[*self._earlier, Attempt(began, ended, self._ended_by)])
            )
            if self._hosts is not None:
                self._hosts.save(kept)
            return kept

    def end(self, by: EndedBy) -> None:
        """Record when and why the attempt ended. If nothing can be written, the earlier state remains."""
        self._ended_by = by
        with contextlib.suppress(CannotRunHere):
            self.update()
