"""Parts of a search that may not be there."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def part(module: str, name: str) -> Any | None:
    """The function `name` of `module`, imported only now; None where there is none."""
    if importlib.util.find_spec(module) is None:
        return None
    return getattr(importlib.import_module(module), name, None)
