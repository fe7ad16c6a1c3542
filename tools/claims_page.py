"""Writes the pages of claims from the claims and kept bundles: `python tools/claims_page.py [--html] >
FILE`."""

from __future__ import annotations

import base64
import hashlib
import itertools
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from dynotune.claims import all_claims, flipped, program_hash, read
from dynotune.schema.claims import Bundle, Claim, Evidence, Fate, Kind
from dynotune.schema.facts import Unknown
from dynotune.text import words

TEMPLATE = Path(__file__).with_name("claims_page.html")
RESULTS = Path(__file__).parents[1] / "benchmarks/results"
ARTICLES = {
    "0": "cuBLAS's workspace variable and Ultralytics",
    "1": "CUDA's JIT cache and a slow ML.NET start",
    "2": "Pinned memory and the DataLoader",
    "3": "YOLO: latency and GPU memory",
    "4": "Strategies for PyTorch on Linux",
    "": "From other sources",
}
MEANS: dict[Fate, str] = {
    "holds": "the claim is true as people state it",
    "holds here": "the claim is true under conditions that this machine meets",
    "refuted": "the claim is not true",
    "no effect here": "the two variants that the test compares are equally fast",
    "undecided": "the machine was too noisy, or the time too short, for an answer",
    "not testable here": "the machine lacks what the test needs, or nothing could be measured",
    "failed": "the test's program failed, so nothing is known about the claim",
}
HEAD = """# Claims

This page lists advice on speed and memory, article by article: what people claim, what is true, and the results of
tests. `dynotune claims run ID` tests a claim on your machine, `dynotune claims show ID` shows how the claim is tested,
and `dynotune claims list --filter WORD` searches the claims.

| verdict | meaning |
| --- | --- |
{meanings}

A gain counts only if two comparisons show it. All verdicts on this page come from bundles, files with the evidence of
one machine, which `dynotune claims verify BUNDLE` checks:

{bundles}

[A page for the browser](claims-filter.html) shows the same claims with filters by word, verdict, kind, article and
machine. `make claims` generates both pages from the claims and the bundles.
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Kept:
    """A bundle among the results.

    Args:
        name: the name of the bundle's file.
        machine: the machine and its version of torch, as a label that no other bundle has.
        evidence: the id of a claim to the evidence for or against the claim.
        earlier: ids of claims whose test has changed since the bundle was made.
    """

    name: str
    machine: str
    bundle: Bundle
    evidence: dict[str, Evidence]
    earlier: Collection[str]

    @property
    def note(self) -> str:
        """Note how many of the bundle's verdicts come from an earlier form of a test; "" if none do."""
        if not self.earlier:
            return ""
        share = "all" if len(self.earlier) == len(self.evidence) else str(len(self.earlier))
        return f"{share} of its {len(self.evidence)} verdicts come from an earlier form of their tests"


def kept(results: Path) -> list[Kept]:
    """Return the bundles in a folder. Raises RecordError if a bundle is damaged or was edited."""
    bundles = {path.name: read(path)[0] for path in sorted(results.glob("claims_*.json"))}
    machines = Counter(map(_machine, bundles.values()))
    tests = {claim.id: program_hash(claim) for claim in all_claims()}
    found = []
    for name, bundle in bundles.items():
        machine = _machine(bundle)
        evidence = {one.id: one for one in bundle.evidence if one.id in tests}
        earlier = {id_ for id_, one in evidence.items() if one.program != tests[id_]}
        label = machine if machines[machine] == 1 else f"{machine} ({name})"
        found.append(Kept(name, label, bundle, evidence, earlier))
    return found


def page(results: Path = RESULTS) -> str:
    """Return the page of claims in Markdown."""
    found = kept(results)
    named = [
        f"- [{_plain(one.machine)}](../../benchmarks/results/{one.name})"
        + (f": {one.note}" if one.note else "")
        for one in found
    ]
    meanings = "\n".join(f"| {verdict} | {text} |" for verdict, text in MEANS.items())
    lines = [
        HEAD.format(meanings=meanings, bundles="\n".join(named) or "No bundle is kept yet."),
        *_flips(found),
    ]
    for number, title in ARTICLES.items():
        lines.append(f"\n## {title}\n")
        lines += [_section(claim, found) for claim in all_claims() if _article(claim) == number]
    return "\n".join(lines).rstrip() + "\n"


def html_page(results: Path = RESULTS) -> str:
    """Return the page with filters: one HTML file that runs only its own script and loads nothing else."""
    style, script = (TEMPLATE.with_suffix(suffix).read_text(encoding="utf-8") for suffix in (".css", ".js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    found = kept(results)
    template = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_harmless, trim_blocks=True, lstrip_blocks=True
    ).from_string(TEMPLATE.read_text(encoding="utf-8"))
    articles = [
        (number or "elsewhere", title, [claim for claim in all_claims() if _article(claim) == number])
        for number, title in ARTICLES.items()
    ]
    options = {
        "verdict": [(verdict, verdict) for verdict in MEANS],
        "machine": [(one.name, one.machine) for one in found],
        "kind": [(kind, kind) for kind in get_args(Kind)],
        "article": [(number, title) for number, title, _ in articles],
    }
    text = template.render(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
        bundles=found,
        articles=articles,
        means=MEANS,
        options=options,
        counts={one.name: Counter(each.verdict for each in one.evidence.values()) for one in found},
        differing={now.id for _, _, _, now in _differing(found)},
        fact=_fact,
        is_link=_is_link,
    )
    return text.rstrip() + "\n"


def _harmless(value: Any) -> Any:
    """Strip control characters from a text before the page escapes it; markup is our own and stays as it
    is."""
    return (
        words.plain(value, longest=2000)
        if isinstance(value, str) and not isinstance(value, Markup)
        else value
    )


def _is_link(source: str) -> bool:
    return source.startswith("https://") and " " not in source


def _article(claim: Claim) -> str:
    return claim.article.partition(".")[0]


def _differing(found: Sequence[Kept]) -> list[tuple[Kept, Evidence, Kept, Evidence]]:
    """Return pairs of bundles that disagree on a claim: each bundle, followed by its evidence."""
    return [
        (one, then, other, now)
        for one, other in itertools.combinations(found, 2)
        for then, now in flipped(other.bundle, one.bundle.evidence)
    ]


def _flips(found: Sequence[Kept]) -> list[str]:
    rows = []
    for one, then, other, now in _differing(found):
        told = (f"{each.verdict} with {_plain(of.machine)}" for of, each in ((one, then), (other, now)))
        rows.append(f"- [{now.id}](#{now.id}): {'; '.join(told)}")
    return ["Claims whose verdict differs between two bundles:\n", *rows] if rows else []


def _section(claim: Claim, found: Sequence[Kept]) -> str:
    rows = [f"### {claim.id}\n", f"“{_plain(claim.says)}”\n"]
    rows.append(f"- **Kind**: {claim.kind}" + (f", row {claim.article}" if claim.article else ""))
    told = {
        "What is true": _plain(claim.fact),
        "What to do instead": _plain(claim.instead),
        "Source": claim.source,
    }
    rows += [f"- **{name}**: {text}" for name, text in told.items() if text]
    for kept_in in found:
        if one := kept_in.evidence.get(claim.id):
            seen = f". {_plain(one.seen)}" if one.seen else ""
            rows.append(f"- **{_plain(kept_in.machine)}**: *{one.verdict}*{seen}")
    return "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """Escape the characters that Markdown would interpret."""
    for sign in "*_[<":
        text = text.replace(sign, f"\\{sign}")
    return words.plain(text, longest=2000)


def _fact(bundle: Bundle, name: str) -> str:
    """Return a fact of the bundle's machine as text; "" if the fact is unknown."""
    value = bundle.facts.get(name, "")
    return "" if isinstance(value, Unknown) else str(value)


def _machine(bundle: Bundle) -> str:
    """Name the machine of a bundle and its version of torch."""
    machine = _fact(bundle, "gpu.name") or f"{_fact(bundle, 'host.num_cores')} cores"
    return f"{machine}, torch {_fact(bundle, 'torch.version')}"


if __name__ == "__main__":
    print(html_page() if "--html" in sys.argv[1:] else page(), end="")
