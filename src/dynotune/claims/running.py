"""Test a claim by a check in the user's interpreter or by a comparison of two arms, and judge the
evidence."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynotune import knobs, probe
from dynotune.measure.bench import protocol
from dynotune.measure.live import CompareRequest, Watcher
from dynotune.schema import document
from dynotune.schema.claims import Claim, Evidence, Fate, TwoArms
from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.errors import CommandFailed, DynotuneError, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from dynotune.text import words

PROGRAMS = Path(__file__).with_name("programs")
SHARED = frozenset({"check.py", "program.py"})
"""The programs that test most claims. A change of these is a change of every test."""
CHECK_S, COMPARISONS_S = 180.0, 240.0
"""Longest time in seconds for a check, and for the comparisons of a claim."""
MOST_PAIRS = 8
MARGIN = 0.03
"""Differences up to this share do not count as a gain."""
PRECISION = 2.0
"""Stop once the interval is at most twice as wide as the difference: then it is clear which arm is faster."""
NEEDED = {"gpu": "on_gpu()", "no gpu": "no_gpu()"}
"""The expression that must be true before a check or a comparison, by what the claim needs."""


def run(claim: Claim, spec: RunSpec, watcher: Watcher, budget_s: float | None = None) -> Evidence:
    """Test a claim, and return the evidence; its verdict is `failed` if the test's program failed.

    Args:
        spec: how to run the test; the command consists of the interpreter alone.
        budget_s: time for the comparisons of the claim, in seconds; there are at most three comparisons.
    """
    begin_s = time.monotonic()
    found: dict[str, Any] = {}
    needed = [NEEDED[claim.needs]] if claim.needs in NEEDED else []
    if claim.untestable:
        found["answer"] = {"untestable": claim.untestable}
    elif needed or claim.check:
        expression = " and ".join([*needed, f"({claim.check or True})"])
        found["command"] = ["python", "check.py", expression]
        found["answer"] = _answer([*spec.command, str(PROGRAMS / "check.py"), expression], spec)
    if claim.compare is not None and (not needed or found["answer"].get("so")):
        try:
            found |= _compared(
                claim, claim.compare, spec, watcher, min(COMPARISONS_S, budget_s or COMPARISONS_S)
            )
        except (
            UsageError
        ) as error:  # dynotune chose the settings: the budget is too small, or one does not apply
            found["answer"] = {"undecided": error.message}
        except DynotuneError as error:
            last = error.last_lines[-1:] if isinstance(error, CommandFailed) else ()
            found["answer"] = {"error": ": ".join([error.message, *last])}
    evidence = Evidence(id=claim.id, verdict="failed", program=program_hash(claim), **found)
    return msgspec.structs.replace(judged(claim, evidence), took_s=round(time.monotonic() - begin_s, 1))


def program_hash(claim: Claim) -> str:
    """Return the SHA-256 of the shared programs, of the claim's own program, and of its check and
    comparison."""
    parts = [(PROGRAMS / name).read_bytes() for name in sorted(SHARED | {claim.program})]
    return hashlib.sha256(b"\0".join([*parts, document.encode([claim.check, claim.compare])])).hexdigest()


def _answer(command: Sequence[str], spec: RunSpec) -> dict[str, Any]:
    """Return the answer that a check printed, or a dict with its `error`."""
    late = f"it did not end within {CHECK_S:.0f} s"
    ended = probe.run_python(command[0], command[1:], spec.cwd, spec.env, CHECK_S, late)
    if isinstance(ended, Unknown):
        return {"error": ended.reason}
    code, stdout, stderr = ended
    last = ((stderr if code else stdout).splitlines() or [b"it said nothing"])[-1]
    try:
        return (
            {"error": last.decode(errors="backslashreplace")}
            if code
            else document.parse(last, dict[str, Any])
        )
    except ValueError as error:
        return {"error": f"its answer cannot be read: {error}"}


def _compared(
    claim: Claim, arms: TwoArms, spec: RunSpec, watcher: Watcher, budget_s: float
) -> dict[str, list[Comparison]]:
    """Compare the arms on the claim's workload, within half of the budget; if the claim holds, again and
    elsewhere."""
    end_s = time.monotonic() + budget_s

    def on(workload: str, parts: int = 2) -> Comparison:
        watcher.say(f"{' '.join(arms.settings)} on {workload}")
        way = ["{way}"] if arms.settings[0].startswith("arg.way") else []
        command = [*spec.command, str(PROGRAMS / claim.program), workload, *way]
        settings = [knobs.parse(text) for text in arms.baseline]
        request = CompareRequest(
            run=msgspec.structs.replace(spec, command=command, settings=settings),
            candidate=[knobs.parse(text) for text in arms.settings],
            max_pairs=MOST_PAIRS,
            margin=MARGIN,
            precision=PRECISION,
            budget_s=max(1.0, (end_s - time.monotonic()) / parts),
            in_process="auto",
        )
        # Other people read the bundle, so leave out folders of this machine, and facts that the bundle
        # already has.
        comparison = protocol.compare(request, watcher)
        command = ["python", claim.program, workload, *way]
        kept = msgspec.structs.replace(comparison.run, command=command, cwd=Path(), base=Path())
        pairs = [Pair(pair.first, pair.baseline_s, pair.candidate_s) for pair in comparison.pairs]
        return msgspec.structs.replace(comparison, facts={}, run=kept, pairs=pairs)

    fair = [on(name) for name in arms.fair]
    if fair[0].verdict == arms.expects != "same":
        fair += [on(name) for name in arms.fair]
    is_so = all(one.verdict == arms.expects for one in fair)
    return {"fair": fair, "elsewhere": [on(name, 1) for name in arms.elsewhere] if is_so else []}


def judged(claim: Claim, evidence: Evidence) -> Evidence:
    """Return the evidence with the verdict that follows from its raw values."""
    verdict, seen = _of_comparisons(claim, evidence) if evidence.fair else _of_answer(claim, evidence.answer)
    return msgspec.structs.replace(evidence, verdict=verdict, seen=seen)


def _of_answer(claim: Claim, answer: dict[str, object]) -> tuple[Fate, str]:
    if reason := answer.get("untestable"):
        return "not testable here", str(reason)
    if reason := answer.get("undecided"):
        return "undecided", str(reason)
    if "so" not in answer:
        return "failed", str(answer.get("error", "the program gave no answer"))
    holds: Fate = "holds" if claim.read == "true" else "holds here"
    return holds if answer["so"] is True else "refuted", str(answer.get("seen", ""))


def _of_comparisons(claim: Claim, evidence: Evidence) -> tuple[Fate, str]:
    """Judge a claim on the speed of two arms.

    A difference counts only if two comparisons show it: a single comparison errs for one useless setting in
    forty.
    """
    expects = "faster" if claim.compare is None else claim.compare.expects
    runs = [*evidence.fair, *evidence.elsewhere]
    seen = "; ".join(map(_shown, runs))
    if failed := next((run.failed for run in runs if run.failed is not None), None):
        return "failed", f"its program failed: {(failed.last_lines or ['it said nothing'])[-1]}"
    found = {run.verdict for run in evidence.fair}
    if len(found) > 1 or found <= {"undecided", None}:
        return "undecided", seen
    if found != {expects}:
        return ("no effect here" if found == {"same"} else "refuted"), seen
    if expects != "same" and len(evidence.fair) < 2:
        return "undecided", f"{seen}; no second comparison was made"
    return ("holds" if {run.verdict for run in evidence.elsewhere} <= {expects} else "holds here"), seen


def _shown(run: Comparison) -> str:
    workload = run.run.command[2] if len(run.run.command) > 2 else "its program"
    ratio = words.so_far(run.speedup, run.ci)
    return f"{workload}: {run.verdict or 'undecided'}{f', {ratio}' if ratio else ''}"
