"""Describe the machine that a command runs on, as facts."""

import contextlib
import functools
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from dynotune import __version__, knobs, probe
from dynotune.launch.process import revision, variants
from dynotune.measure.live.request import Watcher
from dynotune.schema import untrusted
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

SAME = ("host.cpu", "host.num_cores", "gpu.name", "gpu.count", "torch.version", "code.sha256")
"""Facts that must be equal for times to be comparable."""


def facts_of(run: RunSpec, candidate: Sequence[Setting] = ()) -> Facts:
    """Return the facts of machine and target before anything runs.

    `candidate`: settings of the candidate, whose revision is resolved to its present commit.

    Raises UsageError, CannotRunHere: as for `variants.variant` and `revision.find`.
    """
    facts: Facts = {**probe.host.facts(), **probe.nvml.facts(run.env), **_facts_of_target(run, run.settings)}
    for arm in (run.settings, candidate):
        ref = revision.pinned(arm, {})
        if ref is not None:
            facts[f"git.{ref}"] = revision.find(run.cwd, ref).commit
    return facts


def check(settings: Sequence[Setting], facts: Facts, watcher: Watcher) -> None:
    """Refuse settings that do not apply on this machine, and warn of risky settings."""
    for setting in settings:
        knobs.check_applies(setting, facts)
        if caution := knobs.caution(setting, facts):
            watcher.warn(caution)


def checked_facts(run: RunSpec, num_steps: int | None, watcher: Watcher) -> Facts:
    """Return facts of the target if settings need them, since importing the target's torch takes seconds.

    Raises UsageError: a setting or number does not exist or does not fit the other settings.
    """
    for name, value in (("--steps", num_steps), ("--warmup", run.warmup_steps)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is not a number of steps.", hint=f"For example {name} 50.")
    facts = facts_of(run) if run.settings else {}
    check(run.settings, facts, watcher)
    return facts


def facts_of_arm(run: RunSpec, settings: Sequence[Setting], facts: Facts) -> Facts:
    """Return `facts`, updated for another Python if `settings` name one that runs the command.

    Raises UsageError, CannotRunHere: the named Python does not exist, or has no torch.
    """
    python = next((one for one in settings if one.knob == "python"), None)
    if python is None or python in run.settings:
        return facts
    found = _facts_of_target(run, settings)
    version = found["torch.version"]
    if isinstance(version, Unknown):
        raise CannotRunHere(
            f"{python} has no torch that can be asked: {version.reason}.",
            hint="Install torch there, or name another interpreter.",
        )
    return facts | found


def _facts_of_target(run: RunSpec, settings: Sequence[Setting]) -> Facts:
    command, env = variants.variant(run.command, run.env, settings, run.cwd)
    python = probe.interpreter(command, env, run.cwd)
    if isinstance(python, Unknown):
        return dict.fromkeys(probe.torch_build.NAMES, python)
    return dict(_ask(python, run.cwd, tuple(sorted(env.items()))))


@functools.cache
def _ask(python: str, cwd: Path, env: tuple[tuple[str, str], ...]) -> Facts:
    """Ask the interpreter once for all runs with the same settings, because each question starts Python."""
    return probe.torch_build.ask(python, cwd, dict(env))


def refuse_another_machine(what: str, before: Facts, now: Facts) -> None:
    """Refuse to resume a comparison or study that was begun on another machine.

    Raises CannotRunHere: the machines differ.
    """
    moved = [name for name in SAME if now.get(name) != before.get(name)]
    if moved:
        raise CannotRunHere(
            f"This {what} was begun elsewhere: {', '.join(moved)} differ. Runs on two machines cannot be "
            "compared.",
            hint="Start it anew here.",
        )


def shared_facts(run: RunSpec) -> Facts:
    """Return `facts_of`, with a digest of dynotune's version and of the Python files of the command and its
    folder.

    Virtual environments are left out.
    """
    found = hashlib.sha256(__version__.encode())
    files = {word: run.cwd / word for word in run.command if word.endswith(".py")}
    for place, folders, names in os.walk(run.cwd):
        folders[:] = sorted(
            name for name in folders if name[0] != "." and not Path(place, name, "pyvenv.cfg").exists()
        )
        python = (Path(place, name) for name in sorted(names) if name.endswith(".py"))
        files |= {str(path.relative_to(run.cwd)): path for path in python}
    for name, path in files.items():
        with contextlib.suppress(OSError):  # a dangling link or a pipe
            content = untrusted.read(path)
            found.update(f"\0{name}\0{len(content)}\0".encode(errors="replace") + content)
    return {**facts_of(run), "code.sha256": found.hexdigest()}
