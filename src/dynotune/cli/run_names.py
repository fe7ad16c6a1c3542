"""Find a kept run by what people type for it: a folder, a name, the end of a name, or -1 for the last."""

from __future__ import annotations

import re
from pathlib import Path

from dynotune.schema.home import expanded

NAME = re.compile(r"\d{8}-\d{6}-\d{3}-[0-9a-f]{6}")
_ID = re.compile(r"#?([0-9a-f]{6})")
_BACK = re.compile(r"-([1-9]\d{0,3})")


def folders(base: Path) -> list[Path]:
    """Return the folders of runs, the newest first; other files and links are skipped."""
    named = (path for path in base.glob("*") if NAME.fullmatch(path.name))
    return sorted((path for path in named if path.is_dir() and not path.is_symlink()), reverse=True)


def found(typed: str, base: Path) -> Path:
    """Return the folder of a run, or the path itself if no run is meant.

    Args:
        typed: a path, a run's name, the six signs at the end of its name, or -1 for the last run, -2 for the
            one before.
    """
    path = expanded(Path(typed)) if typed.startswith("~") else Path(typed)
    if path.exists():
        return path
    if (base / typed).is_dir():
        return base / typed
    kept = folders(base)
    if (back := _BACK.fullmatch(typed)) and int(back[1]) <= len(kept):
        return kept[int(back[1]) - 1]
    if last := _ID.fullmatch(typed):
        return next((folder for folder in kept if folder.name.endswith(f"-{last[1]}")), path)
    return path
