"""Note beside unpacked caches what they depend on, and say of a later start whether that still holds.

An image is often built where there is no GPU to compare with, and used with other variables: only the machine
that starts the command can tell whether the caches fit.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from dynotune.launch.caches import conditions, contents
from dynotune.schema import atomic, document, untrusted
from dynotune.schema.cache_pack import PackOrigin
from dynotune.schema.errors import RecordError, may_fail
from dynotune.schema.facts import Facts, Unknown

FILE = "pack.json"
LARGEST_BYTES = 1 << 20


def write(folder: Path, origin: PackOrigin) -> None:
    """Write the origin of the caches below `folder` into it. Raises CannotRunHere: writing failed."""
    with may_fail(f"write in {folder}", "Name another folder with --caches."):
        atomic.write(folder / FILE, document.encode(origin))


def facts(known: Facts, env: Mapping[str, str], cwd: Path) -> Facts:
    """Return facts `packed.*` on the unpacked caches that a command uses under `env`; {} without such caches.

    Args:
        known: facts of the machine and of the command's interpreter.
    """
    for place in contents.places(env, cwd):
        if place.off or not place.is_set or not isinstance(place.path, Path):
            continue
        origin = _read(place.path.parent / FILE)
        if origin is not None:
            break
    else:
        return {}
    differences = conditions.differences(origin, conditions.of_facts(known, env, cwd))

    def lines(severity: str) -> list[int | str]:
        return [
            f"{each.what}: packed with {each.packed}, here {each.here}"
            for each in differences
            if each.severity == severity
        ]

    not_known = "; ".join(map(str, lines("unknown")))
    return {
        "packed.folder": str(place.path.parent),
        "packed.dangerous": lines("dangerous"),
        "packed.useless": lines("useless") or (Unknown(not_known) if not_known else []),
        "packed.variables": [*conditions.differing_variables(origin, env)],
    }


def _read(path: Path) -> PackOrigin | None:
    with contextlib.suppress(OSError, RecordError):
        return document.decode(untrusted.read(path, LARGEST_BYTES), PackOrigin, name=str(path))
    return None
