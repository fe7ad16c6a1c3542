"""Compare the results of arms with the baseline's, once per set of settings that may change rounding.

A result is a loss or an output of the program. All arms share the baseline's runs.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from dynotune import knobs
from dynotune.launch.process import has_room
from dynotune.measure.checks import guard, guarded
from dynotune.schema.arm import Arm, arm
from dynotune.schema.errors import DynotuneError
from dynotune.schema.events import ArmResults
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.study import Guarded


class Guards:
    """Results of guards so far; `known`: results of earlier attempts. All arms share the baseline's runs.

    `caches`: folder of the study's compiled code; None if its runs share none.
    """

    def __init__(
        self,
        run: RunSpec,
        folder: Path,
        facts: Facts,
        known: Sequence[Guarded],
        caches: Path | None = None,
    ) -> None:
        self._run, self._folder, self._facts, self._caches = run, folder, facts, caches
        self.own: guard.Own | Unknown | None = None
        """Results of the baseline, once this attempt has run it or tried to."""
        self._found: dict[str, Guarded | Unknown] = {
            # In a study of earlier, outputs of calls also vouched for updates.
            one.arm: one
            for one in known
            if not (one.what == "outputs" and any(id_.startswith("optimizer.") for id_ in one.ids))
        }

    def of(self, one: Arm, limit_s: float) -> Guarded | Unknown | None:
        """Compare the arm's results; None if none of its settings changes rounding. `limit_s`: seconds for
        each run.

        Raises CannotRunHere: the disk is full.
        """
        chosen = arm(guarded(one.settings))
        if not self.is_known(one):
            self._found[chosen.key] = self._compare(chosen, limit_s)
        return self._known(chosen)

    @property
    def told(self) -> list[Guarded]:
        """Return the known results in the order in which they were found."""
        return [one for one in self._found.values() if isinstance(one, Guarded)]

    def seen(self, one: Arm, event: ArmResults) -> None:
        """Keep a comparison of calls or updates within a running program if its results are right; else
        separate runs decide.

        Both calls take the same inputs, so they tell nothing of some settings, such as a decoder's.
        """
        chosen = arm(
            setting
            for setting in guarded(one.settings)
            if setting.knob in event.knobs
            or (event.what == "outputs" and knobs.get(setting.knob).effect == "exact")
        )
        if self.is_known(chosen):
            return
        found = guard.within(chosen.settings, event)
        if isinstance(found, Guarded) and found.ok:
            self._found[chosen.key] = found

    def is_known(self, one: Arm) -> bool:
        """Return whether the result is known without a run."""
        chosen = arm(guarded(one.settings))
        return not chosen.settings or self._known(chosen) is not None

    def _known(self, chosen: Arm) -> Guarded | Unknown | None:
        """Return the known result of these settings, or of more settings that leave results right: fewer then
        do. Where updates of parameters are known to be right, it is that of the other settings."""
        if not chosen.settings or chosen.key in self._found:
            return self._found.get(chosen.key)
        right = [one for one in self.told if one.ok]
        ids = set(map(str, chosen.settings))
        if more := next((one for one in right if ids <= one.ids), None):
            return more
        updates = next((one for one in right if one.what == "updates" and one.ids & ids), None)
        if updates is None:
            return None
        rest = arm(guarded(setting for setting in chosen.settings if str(setting) not in updates.ids))
        return self._known(rest) if rest.settings else updates

    def _compare(self, chosen: Arm, limit_s: float) -> Guarded | Unknown:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            runs = guard.Guard(self._run, self._folder, self._facts, limit_s, caches=self._caches)
            if self.own is None:
                self.own = runs.baseline()
            name = f"guard-{hashlib.sha256(chosen.key.encode()).hexdigest()[:12]}"
            return (
                self.own if isinstance(self.own, Unknown) else runs.compare(chosen.settings, self.own, name)
            )
        except DynotuneError as error:
            if not has_room(self._folder):
                raise
            return Unknown(error.message)
