"""Figures that only measurements give, with where each is from: `constants.toml` beside this file."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from dynotune.schema.errors import UsageError
from dynotune.schema.memory import Outside
from dynotune.schema.run import PretendedGpu
from dynotune.text import words

_SIZE = re.compile(r"(\d+(?:\.\d+)?)(gib|gb|g|mib|mb|m)")
_UNITS = {"gib": 1 << 30, "gb": 10**9, "g": 1 << 30, "mib": 1 << 20, "mb": 10**6, "m": 1 << 20}
_WIDER = 0.5
"""How much wider an interval is that was measured on another generation or version."""
# For a size alone: what most programs ask for is there from this generation on.
_ANY_CAPABILITY, _ANY_MULTIPROCESSORS = (8, 0), 100


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("dynotune.memory").joinpath("constants.toml").read_text("utf-8"))


def gpu(text: str) -> PretendedGpu:
    """The GPU that `--gpu` names: one of the table (`H100-80GB`, `NVIDIA H100 80GB`), or a size such as `24GiB`.

    Raises:
        UsageError: neither.
    """
    wanted = re.sub(r"[\s_-]|nvidia|geforce|tesla", "", text.casefold())
    names = {re.sub(r"-", "", name).casefold(): name for name in _table()["gpu"]}
    found = [name for key, name in names.items() if wanted and key.startswith(wanted)]
    if wanted in names or len(found) == 1:
        name = names.get(wanted) or found[0]
        row = _table()["gpu"][name]
        major, minor = map(int, row["capability"].split("."))
        return PretendedGpu(
            name=name,
            total_bytes=int(row["gib"] * 2**30),
            compute_capability=(major, minor),
            num_multiprocessors=row["multiprocessors"],
        )
    size = _SIZE.fullmatch(text.casefold().replace(" ", ""))
    if size is None or float(size[1]) <= 0:
        raise UsageError(
            f"--gpu {text} is no GPU that dynotune knows, and no size.",
            hint=f"Give its memory: --gpu 24GiB. Known: {', '.join(_table()['gpu'])}.",
        )
    return PretendedGpu(
        name=text.strip(),
        total_bytes=int(float(size[1]) * _UNITS[size[2]]),
        compute_capability=_ANY_CAPABILITY,
        num_multiprocessors=_ANY_MULTIPROCESSORS,
    )


def outside(model: PretendedGpu, torch: str, *, convolves: bool) -> Outside:
    """What a process has of the GPU besides torch's allocator, by the rows for this generation and version.

    Args:
        convolves: it uses cuDNN.
    """
    capability = "{}.{}".format(*model.compute_capability)
    low, middle, high, notes = 0, 0, 0, []
    for kind, name in (("context", "the CUDA context with its modules"), ("cudnn", "cuDNN"))[: 1 + convolves]:

        def fit(row: dict[str, Any]) -> tuple[bool, int]:
            fits = capability.startswith(row["capability"]) and torch.startswith(row["torch"])
            return fits, len(row["capability"]) + len(row["torch"])

        row = max(_table()[kind], key=fit)
        wider = 0.0 if fit(row)[0] else _WIDER
        low += int(row["low_bytes"] * (1 - wider))
        middle += row["num_bytes"]
        high += int(row["high_bytes"] * (1 + wider))
        unlike = "" if fit(row)[0] else f", not measured for compute capability {capability} and torch {torch}"
        notes.append(f"{name} is taken to hold {words.num_bytes(row['num_bytes'])}{unlike} ({row['source']})")
    return Outside(low_bytes=low, num_bytes=middle, high_bytes=high, notes=notes)
