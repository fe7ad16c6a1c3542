"""The home folder of the user, who may have none: in a container, any user id may run."""

import os
import pwd
from pathlib import Path

from dynotune.schema.errors import UsageError


def home() -> Path | None:
    """Return the home folder; None if HOME is no absolute path, and no account has this user id."""
    named = os.environ.get("HOME", "")
    if not Path(named).is_absolute():
        try:
            named = pwd.getpwuid(os.geteuid()).pw_dir
        except KeyError:
            return None
    return Path(named) if Path(named).is_absolute() else None


def expanded(path: Path, *, below: Path | None = None) -> Path:
    """Return the path as an absolute one, with the home folder in place of `~`.

    Args:
        below: what a relative path is relative to; the working folder without it.

    Raises UsageError: a home folder is named that does not exist.
    """
    first, *rest = path.parts or (".",)
    try:
        own = home() if first == "~" else Path(first).expanduser()
    except RuntimeError:  # no account has this name
        own = None
    if own is None:
        raise UsageError(
            f"{path} lies in a home folder, and there is none.",
            hint="Set HOME, or name the folder by its whole path.",
        )
    return (below or Path.cwd()).joinpath(own, *rest)
