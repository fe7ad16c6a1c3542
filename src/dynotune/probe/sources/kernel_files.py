"""Read small files below `/proc` and `/sys`: their text, or why it is unavailable."""

import re
from pathlib import Path

from dynotune.schema.facts import Unknown, needed, or_unknown


def text(root: Path, name: str) -> str | Unknown:
    """Read the file `name` (without the leading slash) below `root`, stripped."""
    try:
        return (root / name).read_text(errors="replace").strip()
    except FileNotFoundError:
        return Unknown(f"this kernel or container has no /{name}")
    except OSError as error:
        return Unknown(f"/{name} cannot be read: {error.strerror}")


def read(path: Path) -> str:
    """Read the text of a file; "" if the file cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def cpu_field(root: Path, name: str) -> str | None:
    """Return the value of `name` in `/proc/cpuinfo`, for the first processor that has this field."""
    found = re.search(rf"^{name}[ \t]*:(.*)$", read(root / "proc/cpuinfo"), re.MULTILINE)
    return found[1].strip() if found else None


def process_name(pid: int, root: Path) -> str | None:
    """Return the process's name; None if no process with that id is visible here."""
    return read(root / f"proc/{pid}/comm").strip() or None


@or_unknown()
def number(root: Path, name: str) -> int | Unknown:
    found = needed(text(root, name))
    try:
        return int(found)
    except ValueError:
        return Unknown(f"/{name} is not a number: {found[:40]}")


@or_unknown()
def numbers(root: Path, name: str) -> list[int | str] | Unknown:
    """Return the numbers in the file, which are separated by blanks."""
    found = needed(text(root, name))
    try:
        return [int(word) for word in found.split()]
    except ValueError:
        return Unknown(f"/{name} is not a row of numbers: {found[:40]}")


@or_unknown()
def chosen(root: Path, name: str) -> str | Unknown:
    """Return the word in brackets, in a file such as `always [madvise] never`."""
    found = needed(text(root, name))
    word = re.search(r"\[(\S+)\]", found)
    return word[1] if word else Unknown(f"/{name} marks none of its words: {found[:40]}")


@or_unknown()
def sizes(root: Path, name: str = "proc/meminfo") -> dict[str, int]:
    """Read lines such as `Name:  12 kB`; return bytes."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", needed(text(root, name)), re.MULTILINE)
    return {key: int(value) * 1024 for key, value in lines}


def counts(path: Path) -> dict[str, int]:
    """Read lines such as `name 12`, as in `memory.events`.

    Raises OSError, ValueError: the file cannot be read, or has another format.
    """
    pairs = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in pairs}
