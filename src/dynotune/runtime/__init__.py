"""Parts for fast programs: staging, prefetching, buffers, captured graphs, a detector.

A user's program imports these modules. They need only torch and the standard library, and work without a GPU.
Code that measures, diagnoses or applies settings lives elsewhere and is not imported here.

`dynotune.runtime.vision` (detection), `dynotune.runtime.data` (pictures and sequences) and
`dynotune.runtime.train` (training loops) are modules of their own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dynotune.runtime.errors import (
    CaptureError,
    ClosedError,
    DeviceError,
    DynotuneRuntimeError,
    ForkedError,
    InputError,
    NumericsError,
    PoolExhausted,
    SourceError,
    TooLargeError,
)

if TYPE_CHECKING:
    from dynotune.runtime.data.prefetch import Prefetcher
    from dynotune.runtime.engine.engine import Engine
    from dynotune.runtime.transfer.pool import BufferPool, Lease
    from dynotune.runtime.transfer.staging import Stager

__all__ = [
    "BufferPool",
    "CaptureError",
    "ClosedError",
    "DeviceError",
    "DynotuneRuntimeError",
    "Engine",
    "ForkedError",
    "InputError",
    "Lease",
    "NumericsError",
    "PoolExhausted",
    "Prefetcher",
    "SourceError",
    "Stager",
    "TooLargeError",
]

# torch takes seconds to import: only what is used pays for it.
_MODULES = {
    "BufferPool": "transfer.pool",
    "Engine": "engine.engine",
    "Lease": "transfer.pool",
    "Prefetcher": "data.prefetch",
    "Stager": "transfer.staging",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    if name in ("data", "train", "vision"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "data", "train", "vision"])
