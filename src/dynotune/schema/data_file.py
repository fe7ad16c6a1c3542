"""Read the package's own data files: tables of TOML, decoded into structs."""

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import takewhile
from typing import Any, TypeVar

import msgspec

from dynotune.schema.errors import DynotuneError

T = TypeVar("T")
Key = str | int


class DataFileError(DynotuneError):
    """A data file of the package does not have the form that the code expects.

    `where`: file and line, such as `knobs/catalogue.toml:12`.
    """

    exit_code = 70
    usual_hint = "The installed package is damaged or was edited. Install dynotune again."

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}.")
        self.where = where


def table(package: str, name: str, of: type[T]) -> T:
    """Return the content of the data file `name` that stands beside the modules of `package`.

    Args:
        package: dotted name, `__package__` of the module that reads the file.
        of: type of the whole file: a struct, or a dict or tuple of structs, which forbid unknown fields.

    Raises DataFileError: the file is no TOML, or an entry has another form; the message names the line and
        the key.
    """
    text = files(package).joinpath(name).read_text("utf-8")
    return decoded(text, of, f"{package.replace('.', '/')}/{name}")


def decoded(text: str, of: type[T], name: str) -> T:
    """Return a table from its text. `name`: the file, for errors.

    Raises DataFileError: as `table`.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"line (\d+)", str(error))  # without one, the end of the file
        raise DataFileError(f"{name}:{line[1] if line else len(text.splitlines())}", str(error)) from error
    try:
        return msgspec.convert(content, of)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        path = _named_path(content, place, lambda part: msgspec.convert(part, of))
        if unknown := re.search(r"unknown field `(.+)`", reason):
            path = [*path, unknown[1]]
        key = ".".join(map(_spelled, path))
        raise DataFileError(
            f"{name}:{_line_of(text, path)}", f"`{key}`: {reason}" if key else reason
        ) from error


def _spelled(key: Key) -> str:
    return str(key) if re.fullmatch(r"[\w-]+", str(key)) else f'"{key}"'


def _named_path(content: Any, place: str, convert: Callable[[Any], object]) -> list[Key]:
    """Return the keys that lead to an error.

    msgspec writes `[...]` for a key of a dict, so each key is tried.

    Args:
        place: msgspec's text, such as "`$[...].site.values[2]`".
        convert: raises ValidationError for a part of the content that has the error.
    """
    path: list[Key] = []
    for attribute, index in re.findall(r"\.([\w-]+)|\[(\d+|\.\.\.)\]", place):
        if index == "...":
            found = _at(content, path)
            path.append(next((key for key in found if _fails(content, [*path, key], convert)), ""))
        else:
            path.append(attribute or int(index))
    return path


def _at(content: Any, path: Sequence[Key]) -> Any:
    for key in path:
        content = content[key]
    return content


def _fails(content: Any, path: Sequence[Key], convert: Callable[[Any], object]) -> bool:
    """Return whether the content without the siblings of the path's last key still has an error."""

    def narrowed(part: Any, keys: Sequence[Key]) -> Any:
        first, *rest = keys
        if not rest:
            return {first: part[first]}
        if isinstance(part, list):
            return [narrowed(item, rest) if index == first else item for index, item in enumerate(part)]
        return part | {first: narrowed(part[first], rest)}

    try:
        convert(narrowed(content, path))
    except msgspec.ValidationError:
        return True
    return False


def _line_of(text: str, path: Sequence[Key]) -> int:
    """Return the number of the line that names the most of a path's keys; 1 if no line names any."""
    best, line = 0, 1
    for number, keys in _keys_of_lines(text):
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, keys, strict=False)))
        if best < shared and shared in (len(keys), len(path)):
            best, line = shared, number
    return line


def _keys_of_lines(text: str) -> Iterator[tuple[int, list[Key]]]:
    """Yield each line that names a key, with all keys that lead there."""
    header: list[Key] = []
    num_items: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\[\[(.+)\]\]", line):
            num_items[match[1]] = num_items.get(match[1], -1) + 1
            header = [*_keys(match[1]), num_items[match[1]]]
            yield number, header
        elif match := re.match(r"\[(.+)\]\s*(#.*)?$", line):
            header = _keys(match[1])
            yield number, header
        elif match := re.match(r"""((?:[\w-]+|"[^"]*"|'[^']*')(?:\.(?:[\w-]+|"[^"]*"))*)\s*=""", line):
            yield number, [*header, *_keys(match[1])]


def _keys(dotted: str) -> list[Key]:
    """Return the keys of a dotted key, which may be quoted; empty if the text is none."""
    try:
        part: Any = tomllib.loads(f"{dotted} = 0")
    except tomllib.TOMLDecodeError:
        return []
    keys: list[Key] = []
    while isinstance(part, dict):
        keys.extend(part)
        part = next(iter(part.values()))
    return keys
