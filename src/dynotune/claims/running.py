"""Testing one claim: a check in the user's interpreter, or a comparison of two arms of a small program."""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynotune import knobs, probe
from dynotune.claims.verdicts import judged
from dynotune.measure.comparison import protocol
from dynotune.measure.live import CompareRequest, Watcher
from dynotune.schema import document
from dynotune.schema.claims import Claim, Evidence
from dynotune.schema.comparison import Comparison
from dynotune.schema.errors import CommandFailed, DynotuneError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec

PROGRAMS = Path(__file__).with_name("programs")
CHECK_S = 180.0
COMPARISON_S = 90.0
"""The most that one comparison takes, if its budget allows that."""
MOST_PAIRS = 8
MARGIN = 0.03
"""A claim of a gain speaks of more than this."""


def run(claim: Claim, spec: RunSpec, watcher: Watcher, budget_s: float | None = None) -> Evidence:
    """Test a claim.

    Args:
        spec: its first word is the interpreter; the rest of its command is not looked at.
        budget_s: for all comparisons of the claim.

    Returns:
        The evidence; if a program failed, its verdict is `failed`.
    """
    begin_s = time.monotonic()
    evidence = Evidence(id=claim.id, verdict="failed", program=program_hash(claim))
    reason = claim.untestable or _lacks(claim, spec)
    if reason:
        evidence = msgspec.structs.replace(evidence, answer={"untestable": reason})
    elif claim.compare is None:
        command = [spec.command[0], str(PROGRAMS / "check.py"), claim.check]
        answer = _answer(command, spec)
        evidence = msgspec.structs.replace(evidence, command=command, answer=answer)
    else:
        try:
            end_s = None if budget_s is None else begin_s + budget_s
            fair = [_compared(claim, claim.compare.fair, spec, watcher, end_s)]
            if fair[0].verdict == claim.compare.expects != "same":
                fair.append(_compared(claim, claim.compare.fair, spec, watcher, end_s))
            elsewhere = (
                [_compared(claim, claim.compare.elsewhere, spec, watcher, end_s)] if _goes_on(claim, fair) else []
            )
            evidence = msgspec.structs.replace(evidence, fair=fair, elsewhere=elsewhere)
        except DynotuneError as error:
            failure = error.last_lines[-1:] if isinstance(error, CommandFailed) else ()
            evidence = msgspec.structs.replace(evidence, answer={"error": ": ".join([error.message, *failure])})
    return msgspec.structs.replace(judged(claim, evidence), took_s=round(time.monotonic() - begin_s, 1))


def program_hash(claim: Claim) -> str:
    """Return the SHA-256 of the programs and of the claim's test."""
    parts = [path.read_bytes() for path in sorted(PROGRAMS.glob("*.py"))]
    return hashlib.sha256(b"\0".join([*parts, document.encode([claim.check, claim.compare])])).hexdigest()


def _goes_on(claim: Claim, fair: Sequence[Comparison]) -> bool:
    """Whether the workload on which the claim should not be so is worth its time."""
    assert claim.compare is not None
    return bool(claim.compare.elsewhere) and all(one.verdict == claim.compare.expects for one in fair)


def _lacks(claim: Claim, spec: RunSpec) -> str:
    """Return what is missing here for a claim; a check says so itself."""
    if claim.needs not in ("gpu", "no gpu") or (claim.check and claim.needs == "gpu"):
        return ""
    gpu = _gpu(spec.command[0], tuple(spec.env.items()), spec.cwd)
    if claim.needs == "no gpu":
        return "there is a GPU" if gpu.get("so") else ""
    return "" if gpu.get("so") else str(gpu.get("untestable") or gpu.get("error"))


@functools.cache
def _gpu(python: str, env: tuple[tuple[str, str], ...], cwd: Path) -> dict[str, Any]:
    return _answer(
        [python, str(PROGRAMS / "check.py"), "bool(on_gpu())"], RunSpec(command=[], cwd=cwd, base=cwd, env=dict(env))
    )


def _answer(command: Sequence[str], spec: RunSpec) -> dict[str, Any]:
    """Return what a check printed, or its `error`."""
    ended = probe.run_python(
        command[0], command[1:], spec.cwd, spec.env, CHECK_S, f"it did not end within {CHECK_S:.0f} s"
    )
    if isinstance(ended, Unknown):
        return {"error": ended.reason}
    code, stdout, stderr = ended
    lines = (stdout.splitlines() if code == 0 else stderr.splitlines()) or [b"it said nothing"]
    if code:
        return {"error": lines[-1].decode(errors="backslashreplace")}
    try:
        return document.parse(lines[-1], dict[str, Any])
    except ValueError as error:
        return {"error": f"its answer cannot be read: {error}"}


def _compared(
    claim: Claim, workload: Sequence[str], spec: RunSpec, watcher: Watcher, end_s: float | None
) -> Comparison:
    assert claim.compare is not None
    watcher.say(f"{claim.id}: {' '.join(claim.compare.settings)} on {workload[0]}")
    way = ["{way}"] if claim.compare.settings[0].startswith("arg.way") else []
    run = msgspec.structs.replace(
        spec,
        command=[spec.command[0], str(PROGRAMS / "program.py"), *workload, *way],
        settings=[knobs.parse(text) for text in claim.compare.baseline],
    )
    comparison = protocol.compare(
        CompareRequest(
            run=run,
            candidate=[knobs.parse(text) for text in claim.compare.settings],
            max_pairs=MOST_PAIRS,
            margin=MARGIN,
            budget_s=COMPARISON_S if end_s is None else max(1.0, min(COMPARISON_S, end_s - time.monotonic())),
            in_process="auto",
        ),
        watcher,
    )
    # The bundle holds the facts once.
    return msgspec.structs.replace(comparison, facts={})
