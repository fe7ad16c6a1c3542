"""Figures that only measurements give, with where each is from: `constants.toml` beside this file."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from dynotune.schema.errors import UsageError
from dynotune.schema.memory_prediction import GpuModel, MemoryTerm

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(GiB|GB|MiB|MB)", re.IGNORECASE)
_UNITS = {"gib": 1 << 30, "gb": 1 << 30, "mib": 1 << 20, "mb": 1 << 20}
_WIDER = 0.5
"""How much wider an interval is that was measured on another generation or version."""


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(files("dynotune.memory").joinpath("constants.toml").read_text("utf-8"))


def gpu(text: str) -> GpuModel:
    """The GPU that `--gpu` names: a name of the table, or a size such as `24GiB`.

    Raises:
        UsageError: neither.
    """
    wanted = re.sub(r"[\s_-]", "", text).casefold()
    for prefix in ("nvidia", "geforce"):
        wanted = wanted.removeprefix(prefix)
    names = {re.sub(r"-", "", row["name"]).casefold(): row for row in _table()["gpu"]}
    found = names.get(wanted)
    if found is None:
        started = [row for name, row in names.items() if name.startswith(wanted)] if wanted else []
        found = started[0] if len(started) == 1 else None
    if found is not None:
        major, minor = found["capability"].split(".")
        return GpuModel(
            name=found["name"],
            total_bytes=found["total_bytes"],
            reserved_bytes=found.get("reserved_bytes", _most_reserved()),
            compute_capability=(int(major), int(minor)),
            num_multiprocessors=found["num_multiprocessors"],
            source=found["source"],
        )
    size = _SIZE.fullmatch(text.strip())
    if size is None or float(size[1]) <= 0:
        raise UsageError(
            f"--gpu {text} is neither a GPU that is known here nor a size.",
            hint=f"Give one of {', '.join(row['name'] for row in _table()['gpu'])}, or its memory, such as 24GiB.",
        )
    total = int(float(size[1]) * _UNITS[size[2].casefold()])
    return GpuModel(name=text.strip(), total_bytes=total, reserved_bytes=_most_reserved(), source="the size given")


def _most_reserved() -> int:
    """What a GPU keeps for itself where that was not measured: as much as the one that keeps most."""
    return max(int(row.get("reserved_bytes", 0)) for row in _table()["gpu"])


def constant(kind: str, name: str, model: GpuModel, torch: str, *, times: int = 1) -> MemoryTerm:
    """The row of `kind` for this generation and version as a term; the nearest one, wider, where there is none."""
    rows = _table()[kind]
    capability = "" if model.compute_capability is None else "{}.{}".format(*model.compute_capability)

    def fit(row: dict[str, Any]) -> tuple[bool, int, int]:
        fits = capability.startswith(row["capability"]) and torch.startswith(row["torch"])
        return fits, len(row["capability"]) if capability.startswith(row["capability"]) else -1, len(row["torch"])

    row = max(rows, key=fit)
    low, middle, high = (row.get(field, row["num_bytes"]) for field in ("low_bytes", "num_bytes", "high_bytes"))
    is_exact, why = fit(row)[0], row["source"]
    if not capability and len(rows) > 1:
        low, high = (pick(other["num_bytes"] for other in rows) for pick in (min, max))
        why = f"the GPU's generation is unknown; {why}"
    elif not is_exact:
        why = f"not measured for compute capability {capability or 'unknown'} and torch {torch}; the nearest is: {why}"
        low, high = int(low * (1 - _WIDER)), int(high * (1 + _WIDER))
    return MemoryTerm(name=name, num_bytes=middle * times, low_bytes=low * times, high_bytes=high * times, why=why)
