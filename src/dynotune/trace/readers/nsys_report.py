"""Have Nsight Systems export a report of its own format, which only nsys reads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from dynotune.schema.errors import UsageError

SUFFIXES = (".nsys-rep", ".qdrep")
LONGEST_S = 900.0
"""A report of some GB takes minutes."""


def exported(report: Path, folder: Path) -> Path:
    """Return the SQLite database that `nsys export` wrote into `folder`, which holds nothing of that name.

    Raises UsageError: nsys is not on the PATH, failed, or took too long.
    """
    target = folder / f"{report.stem}.sqlite"
    if (nsys := shutil.which("nsys")) is None:
        raise UsageError(
            f"{report} is a report of Nsight Systems in its own format, which only nsys itself reads",
            hint=f"where nsys is installed, run: nsys export --type sqlite {report}",
        )
    words = [nsys, "export", "--type", "sqlite", "--output", str(target), str(report.absolute())]
    try:
        done = subprocess.run(
            words,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LONGEST_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{report} could not be exported: {error}", hint=_by_hand(report)) from error
    if done.returncode or not target.is_file():
        lines = (done.stderr.strip() or done.stdout.strip() or "nsys wrote no file").splitlines()
        raise UsageError(f"{report} could not be exported by {nsys}: {lines[-1]}", hint=_by_hand(report))
    return target


def _by_hand(report: Path) -> str:
    return f"try it: nsys export --type sqlite {report}"
