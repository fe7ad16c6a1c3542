"""Figures that only measurements give, read with their sources from `constants.toml` beside this file."""

import re
from functools import cache

import msgspec

from dynotune.schema.data_file import table
from dynotune.schema.errors import UsageError
from dynotune.schema.run import PretendedGpu
from dynotune.text import words

_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(gib|gb|g|mib|mb|m)")
_UNITS = {"gib": 1 << 30, "gb": 10**9, "g": 1 << 30, "mib": 1 << 20, "mb": 10**6, "m": 1 << 20}
_WIDER = 0.5
"""Relative widening of an interval that was measured on another generation or version."""


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU of constants.toml. `gib`: memory as CUDA reports it."""

    gib: float
    # For a GPU given only by its size: the features that most programs need exist from this generation on.
    capability: str = "8.0"
    multiprocessors: int = 100


class Overhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory that only a measurement gives, for the versions that begin with `capability` and `torch`.

    `num_bytes`: the usual bytes, `high_bytes`: the most.
    """

    capability: str
    torch: str
    num_bytes: int
    high_bytes: int
    source: str


class _Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    context: list[Overhead]
    cudnn: list[Overhead]
    gpu: dict[str, Gpu]


@cache
def _table() -> _Constants:
    return table(__package__, "constants.toml", _Constants)


def gpu(text: str) -> PretendedGpu:
    """Return the GPU that `--gpu` names: one of the table (`H100-80GB`, `NVIDIA H100 80GB`), or a size such
    as `24GiB`.

    Raises UsageError: the text is neither a known GPU nor a size.
    """
    wanted = re.sub(r"[\s_-]|nvidia|geforce|tesla", "", text.casefold())
    names = {re.sub(r"-", "", name).casefold(): name for name in _table().gpu}
    found = [name for key, name in names.items() if wanted and key.startswith(wanted)]
    size = _SIZE.fullmatch(text.casefold().replace(" ", ""))
    if wanted in names or len(found) == 1:
        name = names.get(wanted) or found[0]
        row = _table().gpu[name]
    elif size is not None and float(size[1]) > 0:
        name, row = text.strip(), Gpu(gib=float(size[1]) * _UNITS[size[2]] / 2**30)
    else:
        raise UsageError(
            f"--gpu {text} is neither a GPU that dynotune knows nor a size.",
            hint=f"Give its memory: --gpu 24GiB. Known: {', '.join(_table().gpu)}.",
        )
    major, minor = map(int, row.capability.split("."))
    return PretendedGpu(
        name=name,
        total_bytes=int(row.gib * 2**30),
        compute_capability=(major, minor),
        num_multiprocessors=row.multiprocessors,
    )


def outside(model: PretendedGpu, torch: str, *, convolves: bool) -> tuple[int, int, list[str]]:
    """Return a process's memory outside torch's allocator, from the table's row for this generation and
    version.

    Args:
        convolves: whether the process uses cuDNN.

    Returns:
        The bytes, how many more they may be at most, and notes.
    """
    capability = "{}.{}".format(*model.compute_capability)
    total, spread, notes = 0, 0, []
    kinds = (_table().context, "the CUDA context with its modules"), (_table().cudnn, "cuDNN")
    for rows, name in kinds[: 1 + convolves]:
        row = max(rows, key=lambda row: _likeness(row, capability, torch))
        is_known = _likeness(row, capability, torch)[0]
        total += row.num_bytes
        spread += int(row.high_bytes * (1 if is_known else 1 + _WIDER)) - row.num_bytes
        unlike = "" if is_known else f", not measured for compute capability {capability} and torch {torch}"
        notes.append(f"{name} is assumed to take {words.num_bytes(row.num_bytes)}{unlike} ({row.source})")
    return total, spread, notes


def _likeness(row: Overhead, capability: str, torch: str) -> tuple[bool, int]:
    fits = capability.startswith(row.capability) and torch.startswith(row.torch)
    return fits, len(row.capability + row.torch)
