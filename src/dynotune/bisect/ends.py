"""Read what the ends of a bisection are, and make the line between them."""

from pathlib import Path

from dynotune.bisect.differences import Differences, needs_packages
from dynotune.bisect.line import Line
from dynotune.bisect.packages import Environments, Versions
from dynotune.bisect.revisions import Revisions
from dynotune.schema import document
from dynotune.schema.diagnosis import Examination
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.run import RunSpec

_FORMS = "git.ref=REVISION, package.NAME=VERSION, or a file that `dynotune doctor --json FILE` wrote."


def line_of(good: str, bad: str, run: RunSpec, environments: Path) -> Line:
    """Return the line from `good` to `bad`, two ends of the same form.

    Args:
        environments: folder in which environments with other versions are made.

    Raises:
        UsageError: an end has no such form, or there is no line between them.
        RecordError: a file is no examination.
        CannotRunHere: what is needed (git, pip) is missing.
    """
    if good == bad:
        raise UsageError("Both ends are the same.", hint="Name a good one and a bad one.")
    (knob, _, first), (other, _, last) = good.partition("="), bad.partition("=")
    line: Line
    if knob == other == "git.ref":
        line = revisions = Revisions(first, last, run.cwd)
        revisions.refuse_absent(run.command)
    elif knob == other and knob.startswith("package."):
        line = Versions(knob.removeprefix("package."), first, last, Environments(run, environments))
    elif all((run.cwd / end).is_file() for end in (good, bad)):
        here, there = (_facts(run.cwd / end) for end in (good, bad))
        made = Environments(run, environments) if needs_packages(here, there) else None
        line = Differences(here, there, made)
    else:
        raise UsageError(f"{good} and {bad} are no ends of one kind.", hint=f"Both are {_FORMS}")
    if len(line.points) < 2:
        raise UsageError(f"There is no step from {good} to {bad}.", hint="Name two different ends.")
    return line


def _facts(path: Path) -> Facts:
    return document.read(path, Examination).facts
