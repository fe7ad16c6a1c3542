"""The commits between two revisions."""

from pathlib import Path

from dynotune import knobs
from dynotune.launch.process import revision
from dynotune.schema.bisection import BisectionKind, BisectionPoint
from dynotune.schema.setting import Setting


class Revisions:
    """A line of commits, each on the first parent of the next."""

    kind: BisectionKind = "revisions"
    not_switched: tuple[str, ...] = ()

    def __init__(self, good: str, bad: str, cwd: Path) -> None:
        self._cwd = cwd
        self._commits = revision.between(cwd, good, bad)
        self.points = [
            BisectionPoint(name=commit.hash, title=commit.subject, num_parents=commit.num_parents)
            for commit in self._commits
        ]

    def settings(self, point: int) -> list[Setting]:
        commit = self._commits[point].hash
        # A revision that the working tree holds is measured as it is.
        return [] if revision.is_shown(self._cwd, commit) else [knobs.parse(f"git.ref={commit}")]

    def changed(self, before: int, after: int) -> list[str]:
        if after - before == 1:
            return revision.described(self._cwd, self._commits[after].hash)
        return [f"{commit.hash[:12]} {commit.subject}" for commit in self._commits[before + 1 : after + 1]]

    def next_command(self, after: int) -> list[str]:
        commit = self._commits[after]
        if commit.num_parents < 2:
            return []
        base, tip = revision.merged(self._cwd, commit.hash)
        return ["--good", f"git.ref={base[:12]}", "--bad", f"git.ref={tip[:12]}"]
