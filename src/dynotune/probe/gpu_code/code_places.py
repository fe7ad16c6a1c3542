"""List the files that may contain GPU code: the files of given paths, of an interpreter or of a command."""

import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dynotune.probe.gpu_code import elf_code
from dynotune.probe.sources.interpreter import ENVIRONMENT_TOOLS, MARK, SHELLS, answer, interpreter, program
from dynotune.schema import untrusted
from dynotune.schema.device_code import Problem
from dynotune.schema.facts import Unknown

CARRIERS = re.compile(r".*\.(so(\.[\w.-]+)?|cubin|fatbin|ptx)")
"""Names of files that may hold GPU code. Programs are recognised by their mode, because their names say
nothing."""

OTHERS_DECIDE = SHELLS | ENVIRONMENT_TOOLS | {"uv"}
"""Programs that start another program, which is unknown before they run."""

LIBRARY_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")
LINKER_CONFIGURATION = Path("/etc/ld.so.conf")
MOST_LIBRARIES = 2000

TIMEOUT_S = 20.0
QUESTION = f"""
import json, sys, sysconfig
own = {{sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}}
folders = [folder for folder in sys.path if folder and folder not in own and not folder.endswith(".zip")]
print("\\n{MARK}" + json.dumps({{"folders": folders, "prefixes": [sys.prefix, sys.base_prefix]}}))
"""


class Places:
    """Files and folders to scan. `asked`: files that are scanned whatever their name is."""

    def __init__(self) -> None:
        self.roots: list[str] = []
        self.asked: set[Path] = set()
        self.problems: list[Problem] = []
        self._folders: list[Path] = []

    def add(self, path: Path) -> None:
        """Add a file, or a folder with all of its contents."""
        self.roots.append(str(path))
        if path.is_dir():
            self._folders.append(path)
        else:
            self.asked.add(path)

    def files(self, problems: list[Problem], late: threading.Event) -> Iterator[Path]:
        """Yield each file once, however many links lead to it.

        `problems`: receives folders that cannot be read. `late`: function that returns true to end the walk.
        """
        seen: set[tuple[int, int]] = set()
        for path in sorted(self.asked):
            if _is_new(path, seen, problems):
                yield path

        def unreadable(error: OSError) -> None:
            problems.append(Problem(str(error.filename), f"the folder cannot be read: {error.strerror}"))

        for top in self._folders:
            if not _is_new(top, seen, problems):
                continue
            for at, folders, names in os.walk(top, onerror=unreadable, followlinks=True):
                if late.is_set():
                    return
                folders[:] = sorted(name for name in folders if _is_new(Path(at, name), seen, problems))
                likely = sorted(name for name in names if "." not in name or CARRIERS.fullmatch(name))
                for path in (Path(at, name) for name in likely):
                    if ("." in path.name or _is_program(path)) and _is_new(
                        path, seen, problems, regular=True
                    ):
                        yield path


def _is_new(
    path: Path, seen: set[tuple[int, int]], problems: list[Problem], *, regular: bool = False
) -> bool:
    try:
        status = path.stat()
    except OSError as error:
        # A dangling link does not mean that a library is missing here.
        if not (regular and isinstance(error, FileNotFoundError)):
            problems.append(Problem(str(path), f"it cannot be read: {error.strerror}"))
        return False
    key = (status.st_dev, status.st_ino)
    if key in seen or (regular and not stat.S_ISREG(status.st_mode)):
        return False
    seen.add(key)
    return True


def _is_program(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        # The link is circular, or leads to an unreadable folder.
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IXUSR)


def of_interpreter(python: str, places: Places, env: Mapping[str, str], cwd: Path) -> None:
    """Add the folders that an interpreter imports from, and the folder of conda's CUDA libraries.

    The interpreter runs without the user's start-up code. A failure is added to the problems.
    """
    # A program in the working directory has that folder on its path, but naming the folder is left to the
    # user.
    reply = answer(python, QUESTION, cwd, env, TIMEOUT_S)
    if isinstance(reply, Unknown):
        places.problems.append(Problem(python, f"it does not report where its packages are: {reply.reason}"))
        return
    prefixes = [Path(prefix) for prefix in dict.fromkeys(reply["prefixes"])]
    conda = [prefix / "lib" for prefix in prefixes if (prefix / "conda-meta").is_dir()]
    for folder in dict.fromkeys([*map(Path, reply["folders"]), *conda]):
        if folder.is_dir():
            places.add(folder)


def of_command(command: Sequence[str], places: Places, env: Mapping[str, str], cwd: Path) -> str | Unknown:
    """Add the files that a command would load: its interpreter's packages, or the program with its linked
    libraries.

    The command is not run. Return the interpreter or the program; Unknown if only a run would show either.
    """
    python = interpreter(command, env, cwd)
    if isinstance(python, str):
        of_interpreter(python, places, env, cwd)
        return python
    path = program(command, env, cwd)
    if path is None or path.name in OTHERS_DECIDE or not _is_elf(path):
        return python
    places.add(path)
    _add_libraries(path, places, env)
    return str(path)


def _is_elf(path: Path) -> bool:
    try:
        with untrusted.opened(path) as file:
            return file.read(4) == elf_code.MAGIC
    except OSError:
        return False


def _add_libraries(path: Path, places: Places, env: Mapping[str, str]) -> None:
    """Add the libraries that the dynamic linker would load with a program, by the linker's search rules."""
    configured = [*_configured(LINKER_CONFIGURATION), *map(Path, LIBRARY_FOLDERS)]
    asked_for = [Path(folder) for folder in env.get("LD_LIBRARY_PATH", "").split(":") if folder]
    waiting, known = [path], {path.name}
    inherited: list[Path] = []
    while waiting and len(known) < MOST_LIBRARIES:
        at = waiting.pop()
        try:
            with untrusted.opened(at) as file:
                needed = elf_code.Elf(file).needed()
        except (OSError, elf_code.Unreadable):
            # The scan itself reports this file.
            continue
        own, after = _expanded(needed.rpath, at), _expanded(needed.runpath, at)
        # A library's RPATH also applies to the libraries that it loads.
        inherited += [folder for folder in own if folder not in inherited]
        for name in needed.names:
            if name in known:
                continue
            known.add(name)
            found = _found(name, [*inherited, *asked_for, *after, *configured])
            if found is None:
                places.problems.append(Problem(str(at), f"it needs {name}, which is not found"))
            else:
                places.asked.add(found)
                waiting.append(found)


def _expanded(folders: Sequence[str], library: Path) -> list[Path]:
    origin = str(library.resolve().parent)
    return [Path(folder.replace("$ORIGIN", origin).replace("${ORIGIN}", origin)) for folder in folders]


def _found(name: str, folders: Sequence[Path]) -> Path | None:
    if "/" in name:
        return Path(name) if Path(name).is_file() else None
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _configured(file: Path, depth: int = 4) -> Iterator[Path]:
    """Yield folders in the configuration of the system's linker, including those of included files."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in (line.partition("#")[0].strip() for line in lines):
        if line.startswith("include ") and depth:
            pattern = line.removeprefix("include ").strip()
            for included in sorted(Path("/").glob(str(file.parent / pattern).lstrip("/"))):
                yield from _configured(included, depth - 1)
        elif line:
            yield Path(line)
