"""The commits between two revisions."""

from collections.abc import Sequence
from pathlib import Path

from dynotune import knobs
from dynotune.launch.process import revision
from dynotune.schema.bisection import BisectionKind, BisectionPoint
from dynotune.schema.errors import UsageError
from dynotune.schema.setting import Setting


class Revisions:
    """A line of commits, each on the first parent of the next."""

    kind: BisectionKind = "revisions"
    not_switched: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    def __init__(self, good: str, bad: str, cwd: Path) -> None:
        self._cwd = cwd
        self._commits = revision.between(cwd, good, bad)
        self.points = [
            BisectionPoint(name=commit.hash, title=commit.subject, num_parents=commit.num_parents)
            for commit in self._commits
        ]

    def refuse_absent(self, command: Sequence[str]) -> None:
        """Refuse a good end that lacks the command's program, which was added or renamed later.

        Other files, such as one that the program writes, are cautions.

        Raises UsageError.
        """
        for at, word in enumerate(command):
            if not _is_file(self._cwd / word):
                continue
            commit = revision.came_with(self._cwd, word, self._commits)
            if commit is None:
                continue
            good = self._commits[0]
            text = (
                f"{word} is not in {good.hash[:12]} ({good.subject}): it came, or got this name, with "
                f"{commit.hash[:12]} ({commit.subject})."
            )
            # The program itself, or what its interpreter runs: ./run, bash run.sh, python -u train.py
            if at <= 1 or word.endswith(".py"):
                raise UsageError(text, hint=f"Search from there: --good git.ref={commit.hash[:12]}")
            self.cautions += (text,)

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


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a word that is too long for a name, or a closed folder
        return False
