"""An account of memory with all that its report tells, for the tests of that."""

from __future__ import annotations

from dynotune.schema.diagnosis import MemoryAccount
from dynotune.schema.memory import Moment, RankMemory, Term

GIB = 1 << 30


def moment(**gib: float) -> Moment:
    modules = {"Net.layers.0": GIB, "Net.<script>alert(1)</script>": GIB // 2}
    terms = [
        Term(name=name, num_bytes=int(size * GIB), modules=modules if name == "activations" else {})  # type: ignore[arg-type]
        for name, size in gib.items()
    ]
    total = sum(term.num_bytes for term in terms)
    return Moment(process_bytes=total, reserved_bytes=total, requested_bytes=total, terms=terms)


RANK = RankMemory(
    pid=1,
    device=0,
    total_bytes=80 * GIB,
    others_bytes=3 * GIB,
    peak=moment(weights=2, activations=6, context=0.5),
    steady=moment(weights=2, context=0.5),
    trains=True,
    num_samples=32,
    step_s=0.12,
    before_s=0.1,
    notes=["modules are unknown: calls of a program that compiles are left unchanged"],
)
ACCOUNT = MemoryAccount(command=["python", "train.py"], ranks=[RANK])
