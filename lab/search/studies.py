"""Studies and candidates of a command that is only simulated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, Study

FOREVER_S = 1e9


def study_of(candidates: Iterable[Candidate], *, budget_s: float = FOREVER_S, seed: int = 0) -> Study:
    run = RunSpec(command=["train"], cwd=Path("/"), base=Path("/runs"), seed=seed)
    return Study(id="simulated", run=run, budget_s=budget_s, candidates=list(candidates))


def candidate(id_: str, *, why: Sequence[str] = ("a-finding",), **more: object) -> Candidate:
    """From `knob=value`."""
    knob, _, value = id_.partition("=")
    fields: dict[str, Any] = {"effect": "exact", "why": list(why)} | more
    return Candidate(setting=Setting(knob, int(value) if value.isdigit() else value), **fields)
