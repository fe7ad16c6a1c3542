"""Claims (advice that people give) with the facts and test results."""

from typing import Any, Literal

import msgspec

from dynotune.schema.comparison import Comparison, Verdict
from dynotune.schema.facts import Facts

Kind = Literal["speed", "memory", "latency", "start", "correctness", "arithmetic", "api", "configuration"]
Fate = Literal["holds", "holds here", "refuted", "no effect here", "undecided", "not testable here", "failed"]
"""`holds here`: the claim holds under conditions that are met here. `failed`: the test program failed: no
verdict."""
SETTLED: tuple[Fate, ...] = ("holds", "holds here", "refuted", "no effect here")

CHANGES: dict[Kind, str] = {
    "speed": "another GPU, other versions, another shape of the work",
    "arithmetic": "nothing",
    "api": "another version of the library",
}
"""By kind of claim, changes that could change the verdict; for kinds not listed, another machine or other
versions."""


class TwoArms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two arms of a claim's comparison.

    Args:
        settings, baseline: settings of the candidate and of the baseline, as `dynotune compare` takes them.
        fair: the workload for which the claim should hold, with further arguments of its program.
        elsewhere: a workload for which the claim should not hold; "" without a fair workload of this kind.
        expects: what the claim states about the candidate.
    """

    settings: list[str]
    baseline: list[str] = []
    fair: list[str]
    elsewhere: list[str] = []
    expects: Verdict = "faster"


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One piece of advice, the facts, and one test: `check`, `compare` or `untestable`.

    Args:
        article: the claim's row in an article, `2.13`; "" if it comes from elsewhere.
        says: the claim. fact: the facts beyond the claim. instead: how to reach the goal of the advice.
        read: how the claim compares with the primary source.
        needs: the hardware and software that the test needs on this machine.
        about: search words with which people ask for the claim.
        bears_on: ids of related findings.
        traces: environment variables and kernel settings that show that the advice was followed, with usual
            values.
        program: the program of `programs/` whose workloads are compared.
        seen: the trace (from `traces`) that was found on this machine; "" if the user asked for the claim.
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
    program: str = "program.py"
    untestable: str = ""
    seen: str = ""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Result of testing one claim.

    Args:
        seen: the decisive observation, as text.
        command: the command of the check; a comparison's commands are in `fair` and `elsewhere`.
        program: SHA-256 of the programs and of the claim's test.
        answer: output of the check's command.
        fair, elsewhere: comparisons with the values of each pair; `fair` has two if the first confirmed the
            claim.
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
    """Evidence from one machine, by `dynotune claims run --output`. `sha256`: digest of the other fields, as
    JSON."""

    schema: str = "dynotune.claims/1"
    version: str
    facts: Facts
    evidence: list[Evidence] = []
    sha256: str = ""
