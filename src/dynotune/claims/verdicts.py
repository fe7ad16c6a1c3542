"""What the evidence of a claim means. Nothing here measures, so that a bundle can be judged again."""

from __future__ import annotations

import msgspec

from dynotune.schema.claims import Claim, Evidence, Fate
from dynotune.schema.comparison import Comparison
from dynotune.text import words


def judged(claim: Claim, evidence: Evidence) -> Evidence:
    """Return the evidence with the verdict that its raw values carry."""
    verdict, seen = _of_comparisons(claim, evidence) if evidence.fair else _of_answer(claim, evidence.answer)
    return msgspec.structs.replace(evidence, verdict=verdict, seen=seen)


def _of_answer(claim: Claim, answer: dict[str, object]) -> tuple[Fate, str]:
    if reason := answer.get("untestable"):
        return "not testable here", str(reason)
    if reason := answer.get("undecided"):
        return "undecided", str(reason)
    if "so" not in answer:
        return "failed", str(answer.get("error", "the program gave no answer"))
    holds: Fate = "holds here" if claim.read == "conditional" else "holds"
    return holds if answer["so"] is True else "refuted", str(answer.get("seen", ""))


def _of_comparisons(claim: Claim, evidence: Evidence) -> tuple[Fate, str]:
    """Judge a claim on the speed of two arms.

    A difference counts once two comparisons show it: one in forty that does nothing would pass a single one.
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
