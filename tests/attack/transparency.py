"""The part of the attack in which odd programs run bare and under `dynotune run`, and must not notice."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pty
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from .counts import Counts, drawn
from .odd_programs import PROGRAMS, Odd

CASES = list(PROGRAMS)
WHOLE = len(CASES)
LONGEST_S = 300
MUCH_BYTES = 1 << 30


class Outcome(NamedTuple):
    """How it ended, what it said and what it left."""

    code: int
    out: bytes
    err: bytes
    files: dict[str, str]


def attack(
    number: int, seed: int, *, first: int = 0, cases: list[str] = CASES, much_bytes: int = MUCH_BYTES
) -> Counts:
    """Run `number` programs bare and under dynotune.

    Args:
        cases: the programs that are drawn from.
        much_bytes: what the program prints that prints much.
    """
    counts = Counts()
    for at in range(first, first + number):
        name = drawn(cases, seed, at)
        odd = PROGRAMS[name]
        if odd.needs and importlib.util.find_spec(odd.needs) is None:
            counts.skipped[name] = f"{odd.needs} is not installed"
            continue
        counts.tried[name] += 1
        if wrong := differences(odd, much_bytes):
            counts.failures.append(f"{name}, --seed {seed}, case {at}: {'; '.join(wrong)[:1500]}")
        else:
            counts.held[name] += 1
    return counts


def differences(odd: Odd, much_bytes: int) -> list[str]:
    """In what the run under dynotune was otherwise than the bare one."""
    with tempfile.TemporaryDirectory(prefix="transparent-") as folder:
        bare, under = (
            _outcome(odd, Path(folder), much_bytes, launched=launched) for launched in (False, True)
        )

    def compared(value: object) -> object:
        pattern = re.compile(
            rf"0x[0-9a-f]+|{odd.differs[0]}" if odd.differs[0] else "0x[0-9a-f]+", re.MULTILINE
        )
        return pattern.sub("", value.decode("latin-1")) if isinstance(value, bytes) else value

    return [
        f"{what}: {_short(now)}, bare {_short(was)}"
        for what, was, now in zip(Outcome._fields, bare, under, strict=True)
        if compared(was) != compared(now)
    ]


def _outcome(odd: Odd, folder: Path, much_bytes: int, *, launched: bool) -> Outcome:
    project, state = folder / "project", folder / "home"
    for path in (project, state):
        path.mkdir()
    files = {"main.py": odd.program, **odd.files} if odd.program else odd.files
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
        (project / name).chmod(0o755)
    places = {"@python": sys.executable, "{size}": str(much_bytes)}
    words = [places.get(word, word) for word in odd.words]
    if launched:
        # The shell has the command's own words where it does something with them.
        words = [
            str(Path(sys.executable).with_name("dynotune")),
            "run",
            "--run-dir",
            str(folder / "runs"),
            "--",
            *words,
        ]
    shell = odd.shell.replace('"$1"', f'"{sys.executable}"')
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(state),
        "LANG": "C.UTF-8",
        "TMPDIR": tempfile.gettempdir(),
        "TERM": "xterm",
        **odd.env,
    }
    command = ["bash", "-c", shell, "bash", *words]
    run = _on_a_terminal if odd.terminal else _on_pipes
    try:
        code, out, err = run(command, odd.stdin, project, env)
        return Outcome(code, out, err, _left(project))
    finally:
        # Both have folders of the same names.
        for path in (project, state):
            path.rename(folder / f"{path.name}-{launched}")


def _on_pipes(command: list[str], stdin: bytes, cwd: Path, env: dict[str, str]) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        command, input=stdin, capture_output=True, cwd=cwd, env=env, timeout=LONGEST_S, start_new_session=True
    )
    return done.returncode, done.stdout, done.stderr


def _on_a_terminal(
    command: list[str], stdin: bytes, cwd: Path, env: dict[str, str]
) -> tuple[int, bytes, bytes]:
    pid, master = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(command[0], command, env)
    shown, typed = b"", False
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(master, 65536):
            shown += chunk
            # Typed once it asks: what is typed before is shown by the terminal in another place.
            if not typed and shown.rstrip().endswith((b">", b":")):
                os.write(master, stdin)
                typed = True
    os.close(master)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown, b""


def _left(folder: Path) -> dict[str, str]:
    """What lies there: kinds, modes, targets and contents, bytecode by its name alone."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif stat.S_ISREG(status.st_mode) and path.suffix not in (".pyc", ".pyz"):
            content = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        found[str(path.relative_to(folder))] = f"{status.st_mode:o} {content}"
    return found


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 500 else f"{text[:250]} … {text[-250:]}"
