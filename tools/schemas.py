"""Writes the JSON schemas of all documents: `python tools/schemas.py docs/reference/schemas`, a file each."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from dynotune.schema.comparison import Comparison
from dynotune.schema.diagnosis import Diagnosis, Examination, MemoryAccount
from dynotune.schema.precision import Precision
from dynotune.schema.running import RunningDiagnosis
from dynotune.schema.startup import Startup
from dynotune.schema.study import Study
from dynotune.schema.trace_summary import TraceDifference, TraceSummary

DOCUMENTS: tuple[type[msgspec.Struct], ...] = (
    Comparison,
    Diagnosis,
    Examination,
    MemoryAccount,
    Precision,
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
    return json.dumps(msgspec.json.schema(document, schema_hook=_as_written), indent=1, sort_keys=True) + "\n"


def _as_written(type_: Any) -> dict[str, Any]:
    """Return the schema of a type that documents hold as text."""
    return {"type": "string", "description": type_.__name__}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")
