"""The versions of a package between two versions, each in an environment of its own."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from dynotune import knobs
from dynotune.bisect.line import NotMade
from dynotune.schema.bisection import BisectionKind, BisectionPoint
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting

_INSTALL_S = 1800.0
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]*")
_PRE_RELEASE = re.compile(r"\d(a|b|rc|\.dev)\d")
_IS_GONE = re.compile(
    r"No matching distribution|ResolutionImpossible|conflicting dependencies|not a supported wheel"
)
_IS_UNREACHED = re.compile(r"connection broken|Could not fetch URL|Failed to (fetch|resolve)|name resolution")
_SITE = "import sysconfig; print(sysconfig.get_path('purelib'))"


class Environments:
    """Environments in which packages have other versions; all else is that of the command's own Python.

    An environment is a virtual one whose path ends in the packages of the command's own. Nothing is written
    into the latter.

    Args:
        folder: where environments are made.
    """

    def __init__(self, run: RunSpec, folder: Path) -> None:
        self._run, self._folder = run, folder
        self.python = _python_of(run)

    def settings(self, versions: Mapping[str, str]) -> list[Setting]:
        """Return the setting that runs the command with these versions of packages.

        Names and versions may come from a file that anyone wrote.

        Raises:
            NotMade: a version cannot be installed: it is gone, or it has no wheel for this Python.
            UsageError: a name or version is none; nothing is written or asked for then.
            CannotRunHere: pip, or what it needs, is missing: a network, space on the disk.
        """
        for name, version in versions.items():
            _refuse_other_text(name, version)
        return [knobs.parse(f"python={self._made(versions)}")] if versions else []

    def versions(self, name: str) -> list[str]:
        """Return all released versions that have a wheel for this Python, the oldest first.

        Raises:
            UsageError: `name` is no name of a package.
            CannotRunHere: neither pip nor uv can ask the registry, or it has no such package.
        """
        _refuse_other_text(name)
        try:
            said = self._call([*self._pip(), "index", "versions", name, "--only-binary", ":all:", "--pre"])
        except (NotMade, CannotRunHere) as error:
            raise CannotRunHere(
                f"No versions of {name} were found for {self.python}: {error.message}",
                hint=error.hint
                or "Is the name right, and does this machine reach the package index? PIP_INDEX_URL names "
                "another index, and PIP_FIND_LINKS a folder of wheels.",
            ) from error
        found = re.search(r"Available versions: (.+)", said)
        listed = [] if found is None else [version.strip() for version in found.group(1).split(",")]
        return listed[::-1]

    def _made(self, versions: Mapping[str, str]) -> Path:
        pins = sorted(f"{name}=={version}" for name, version in versions.items())
        folder = self._folder / hashlib.sha256("\n".join(pins).encode()).hexdigest()[:16]
        python = folder / "bin" / "python"
        complete = folder / "complete"
        if complete.is_file():
            return python
        shutil.rmtree(folder, ignore_errors=True)
        self._call([str(self.python), "-m", "venv", "--without-pip", str(folder)])
        own, base = (self._call([str(each), "-c", _SITE]).strip() for each in (python, self.python))
        # A path file is read after the environment's own packages, so these come first.
        Path(own, "the_commands_own.pth").write_text(f"import site; site.addsitedir({base!r})\n")
        try:
            self._call([*self._pip(python), "install", "--quiet", "--only-binary", ":all:", *pins])
        except NotMade as error:
            raise NotMade(
                f"No wheels for {self.python} make {' '.join(pins)}: {error.message}.",
                hint="Name another version as that end. Versions are installed from wheels alone, and those "
                "between the ends that have none are skipped.",
            ) from error
        complete.write_text("\n".join(pins))
        return python

    def _pip(self, python: Path | None = None) -> list[str]:
        """Return how pip is started for a Python: its own pip, which sees the packages that it has; else
        uv's."""
        python = python or self.python
        try:
            self._call([str(python), "-m", "pip", "--version"])
        except CannotRunHere as error:
            if (uv := shutil.which("uv")) is None:
                raise CannotRunHere(
                    f"Versions of a package need pip or uv, and {self.python} has no pip.",
                    hint="Install uv, or pip into that environment.",
                ) from error
            return [uv, "tool", "run", "pip", "--python", str(python)]
        return [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]

    def _call(self, words: Sequence[str]) -> str:
        """Return what a program printed.

        Raises:
            NotMade: pip found no wheel that fits.
            CannotRunHere: it failed for another reason, which may be over when it is tried again.
        """
        env = {
            name: value for name, value in self._run.env.items() if name not in ("PYTHONHOME", "PYTHONPATH")
        }
        try:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                env=env,
                timeout=_INSTALL_S,
                check=False,
                cwd=self._folder.parent,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotRunHere(f"{Path(words[0]).name} did not end: {error}.") from error
        if done.returncode != 0:
            last = next(iter(reversed(done.stderr.strip().splitlines())), "it failed").removeprefix("ERROR: ")
            if _IS_UNREACHED.search(done.stderr):
                hint = "Does this machine reach the package index? PIP_INDEX_URL names another one."
                raise CannotRunHere(f"The package index was not reached: {last}", hint=hint)
            raise NotMade(last) if _IS_GONE.search(done.stderr) else CannotRunHere(last)
        return done.stdout


class Versions:
    """The released versions of a package, from the good one to the bad one, whichever is newer."""

    kind: BisectionKind = "versions"
    not_switched: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    def __init__(self, name: str, good: str, bad: str, environments: Environments) -> None:
        _refuse_other_text(name, good, bad)
        self._name, self._environments = name, environments
        all_ = environments.versions(name)
        for version in (good, bad):
            if version not in all_:
                raise UsageError(
                    f"There is no wheel of {name} {version} for {environments.python}.",
                    hint=f"There are: {', '.join(all_[-12:]) or 'none'}.",
                )
        first, last = all_.index(good), all_.index(bad)
        step = 1 if last >= first else -1
        line = all_[first : last + step if last + step >= 0 else None : step]
        kept = [each for each in line if each in (good, bad) or not _PRE_RELEASE.search(each)]
        self.points = [BisectionPoint(name=version, title=f"{name} {version}") for version in kept]

    def settings(self, point: int) -> list[Setting]:
        return self._environments.settings({self._name: self.points[point].name})

    def changed(self, before: int, after: int) -> list[str]:
        return [f"{self._name} {self.points[before].name} → {self.points[after].name}"]

    def next_command(self, after: int) -> list[str]:
        return []


def _refuse_other_text(name: str, *versions: str) -> None:
    """Refuse what pip could take for an option, an address or a path.

    Raises UsageError.
    """
    for text, form in ((name, _NAME), *((version, _VERSION) for version in versions)):
        if not form.fullmatch(text):
            raise UsageError(f"{text!r} is no package or version.", hint="package.NAME=VERSION")


def _python_of(run: RunSpec) -> Path:
    """Return the interpreter that the command names, or that lies beside the program that it names."""
    word = run.command[0] if run.command else ""
    found = shutil.which(word, path=run.env.get("PATH", os.defpath))
    if found is None and (run.cwd / word).is_file():
        found = str(run.cwd / word)
    if found is not None:
        path = Path(found)
        python = path if path.name.startswith("python") else path.parent / "python"
        if python.is_file():
            return python
    raise UsageError(
        f"No Python belongs to {word!r}, so its packages cannot be exchanged.",
        hint="Begin the command with python: python -m MODULE runs what a script runs.",
    )
