"""Writes the JSON schemas of all documents: `python tools/schemas.py docs/reference/schemas`, a file each."""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from dynotune.schema.account import RunAccount
from dynotune.schema.bisection import Bisection
from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis, Examination, MemoryAccount
from dynotune.schema.largest import LargestValue
from dynotune.schema.precision import Precision
from dynotune.schema.running import RunningDiagnosis
from dynotune.schema.startup import Startup
from dynotune.schema.study import Study
from dynotune.schema.trace_summary import TraceDifference, TraceSummary

DOCUMENTS: tuple[type[msgspec.Struct], ...] = (
    Bisection,
    Comparison,
    Diagnosis,
    Examination,
    LargestValue,
    MemoryAccount,
    Precision,
    RunAccount,
    RunningDiagnosis,
    Startup,
    Study,
    TraceDifference,
    TraceSummary,
)


def schemas() -> dict[str, str]:
    """Return the text of each file, by its name."""
    return {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", one.__name__).lower() + ".json": _text(one) for one in DOCUMENTS
    }


def _text(document: type[msgspec.Struct]) -> str:
    schema = _cleaned(msgspec.json.schema(document, schema_hook=_as_written))
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


def _cleaned(schema: Any) -> Any:
    """Return the schema as any msgspec writes it.

    Since 0.23, docstrings lack the code's indentation, and an object says which names it may have.
    """
    if isinstance(schema, list):
        return [_cleaned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {name: _cleaned(each) for name, each in schema.items() if name != "propertyNames"}
    if isinstance(cleaned.get("description"), str):
        cleaned["description"] = inspect.cleandoc(cleaned["description"])
    return cleaned


def _as_written(type_: Any) -> dict[str, Any]:
    """Return the schema of a type that documents hold as text."""
    return {"type": "string", "description": type_.__name__}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")
