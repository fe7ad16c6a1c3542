"""Losses or outputs of each set of settings that may change rounding, compared with the baseline's once."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynotune.launch.process import has_room
from dynotune.measure.checks import guard, guarded
from dynotune.schema.errors import DynotuneError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.study import Guarded
from dynotune.search.bench import Arm, arm


class Guards:
    """Results known so far; `known`: from earlier attempts. The baseline's runs serve all arms."""

    def __init__(self, run: RunSpec, folder: Path, facts: Facts, known: Sequence[Guarded]) -> None:
        self._run, self._folder, self._facts = run, folder, facts
        self.own: guard.Own | Unknown | None = None
        """Of the baseline, once this attempt has run it, or tried to."""
        self._found: dict[str, Guarded | Unknown] = {one.arm: one for one in known}

    def of(self, one: Arm, limit_s: float) -> Guarded | Unknown | None:
        """Return None if nothing in the arm changes rounding; `limit_s`: for each run.

        Raises:
            CannotRunHere: no room on the disk.
        """
        chosen = arm(guarded(one.settings))
        if not self.is_known(one):
            self._found[chosen.key] = self._compare(chosen, limit_s)
        return self._known(chosen)

    @property
    def told(self) -> list[Guarded]:
        """Return what is known, in the order in which it was learned."""
        return [one for one in self._found.values() if isinstance(one, Guarded)]

    def seen(self, one: Arm, event: dict[str, Any]) -> None:
        """Keep what calls within a running program say, if results are right; else runs of their own decide."""
        if self.is_known(one):
            return
        chosen = arm(guarded(one.settings))
        found = guard.within(chosen.settings, event)
        if isinstance(found, Guarded) and found.ok:
            self._found[chosen.key] = found

    def is_known(self, one: Arm) -> bool:
        """Tell whether asking costs no run."""
        chosen = arm(guarded(one.settings))
        return not chosen.settings or self._known(chosen) is not None

    def _known(self, chosen: Arm) -> Guarded | Unknown | None:
        """Return what is known of these settings, or of more: what leaves results right does so with fewer settings."""
        if not chosen.settings or chosen.key in self._found:
            return self._found.get(chosen.key)
        ids = set(map(str, chosen.settings))
        return next((one for one in self.told if one.ok and ids <= set(one.arm.split(" "))), None)

    def _compare(self, chosen: Arm, limit_s: float) -> Guarded | Unknown:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            runs = guard.Guard(self._run, self._folder, self._facts, limit_s)
            if self.own is None:
                self.own = runs.baseline()
            name = f"guard-{hashlib.sha256(chosen.key.encode()).hexdigest()[:12]}"
            return self.own if isinstance(self.own, Unknown) else runs.compare(chosen.settings, self.own, name)
        except DynotuneError as error:
            if not has_room(self._folder):
                raise
            return Unknown(error.message)
