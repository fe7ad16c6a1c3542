"""Claims: advice that people give, what is so, and what came of testing it; and what is known of a finding."""

from typing import Any, Literal

import msgspec

from dynotune.schema.comparison import Comparison, Verdict
from dynotune.schema.facts import Facts

Kind = Literal["speed", "memory", "latency", "start", "correctness", "arithmetic", "api", "configuration"]
Fate = Literal["holds", "holds here", "refuted", "no effect here", "undecided", "not testable here", "failed"]
"""`holds here`: under conditions that are met here. `failed`: its program did, so that nothing is said of the claim."""
SETTLED: tuple[Fate, ...] = ("holds", "holds here", "refuted", "no effect here")

CHANGES: dict[Kind, str] = {
    "speed": "another GPU, other versions, another shape of the work",
    "arithmetic": "nothing",
    "api": "another version of the library",
}
"""What would change a verdict on a claim of this kind; of others, another machine and other versions."""


class TwoArms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A claim's comparison.

    Args:
        settings, baseline: of the two arms, as `dynotune compare` takes them.
        fair: the workload on which the claim should be so, with what else its program is given.
        elsewhere: a workload on which it should not; empty if none is fair.
        expects: what the claim says of the candidate.
    """

    settings: list[str]
    baseline: list[str] = []
    fair: list[str]
    elsewhere: list[str] = []
    expects: Verdict = "faster"


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Advice, what is so, and how it is tested: by one of `check`, `compare` and `untestable`.

    Args:
        article: the row it has in one, `2.13`; "" if it was heard elsewhere.
        says: the claim. fact: what is so, if that is more. instead: what to do for what people want.
        read: how it reads against the primary source.
        needs: what must be here for it to be tested.
        about: words by which it is asked for.
        bears_on: ids of findings.
        traces: variables and settings of the kernel that show it on a machine, with their usual values.
        seen: the trace that it left on this machine; "" where it was asked for.
    """

    id: str
    says: str
    kind: Kind
    read: Literal["true", "conditional", "false", "untestable"]
    source: str
    article: str = ""
    fact: str = ""
    instead: str = ""
    needs: Literal["", "gpu", "no gpu", "two gpus", "root", "ultralytics", "tensorrt"] = ""
    about: list[str] = []
    bears_on: list[str] = []
    traces: dict[str, list[int | str]] = {}
    check: str = ""
    compare: TwoArms | None = None
    untestable: str = ""
    seen: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Result of testing one claim.

    Args:
        seen: what decided, in words.
        command: that checked; a comparison holds its own.
        program: SHA-256 of the programs and of the claim's test.
        answer: what the check printed.
        fair, elsewhere: comparisons, with the values of each pair; two of `fair` if the first was as claimed.
    """

    id: str
    verdict: Fate
    seen: str = ""
    command: list[str] = []
    program: str = ""
    answer: dict[str, Any] = {}
    fair: list[Comparison] = []
    elsewhere: list[Comparison] = []
    took_s: float = 0.0


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Bundle of evidence from one machine, by `dynotune claims run --output`. `sha256`: of the rest, as JSON."""

    schema: str = "dynotune.claims/1"
    version: str
    facts: Facts
    evidence: list[Evidence] = []
    sha256: str = ""


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, from its rule.

    Args:
        scope: "machine" is judged from facts alone, "program" from a command that was watched.
        family: of rules.
        explains: ids of more general findings whose reason it is.
        settings: that it may name as candidates.
    """

    id: str
    title: str
    scope: Literal["machine", "program"]
    family: str
    sees: str
    costs: str
    wrong: str
    explains: list[str] = []
    settings: list[str] = []


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Document of `dynotune explain --json`."""

    schema: str = "dynotune.explanation/2"
    asked: str
    finding: Explained | None = None
    claims: list[Claim] = []
