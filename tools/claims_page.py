"""Writes the pages of claims from the claims and kept bundles: `python tools/claims_page.py [--html] > FILE`."""

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
    "": "Heard elsewhere",
}
MEANS: dict[Fate, str] = {
    "holds": "as it is said",
    "holds here": "under conditions that are met there",
    "refuted": "it is not so",
    "no effect here": "both arms of its comparison are the same",
    "undecided": "the machine was too noisy, or the time too short",
    "not testable here": "something is missing, or nothing could be measured",
    "failed": "its program did; nothing is said of the claim",
}
HEAD = """# Claims

Advice on speed and memory, article by article: what is so, and what came of testing it. `dynotune claims run ID` tests
one on your machine, `dynotune claims show ID` says how, `dynotune claims list --filter WORD` finds one.

| verdict | means |
| --- | --- |
{meanings}

A gain counts once two comparisons show it. `dynotune claims verify BUNDLE` checks a bundle, and verdicts come from
bundles alone:

{bundles}

[The same with filters](claims-filter.html), by word, verdict, kind, article and machine, is a page for the browser.
Both are made from the claims and the bundles: `make claims` writes them.
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """A bundle among the results.

    Args:
        name: of its file.
        machine: it and its torch, in words that no other bundle has.
        evidence: by the id of its claim.
        earlier: ids of claims whose test was another then.
    """

    name: str
    machine: str
    bundle: Bundle
    evidence: dict[str, Evidence]
    earlier: Collection[str]

    @property
    def note(self) -> str:
        """What is to be known of its verdicts; "" if nothing."""
        if not self.earlier:
            return ""
        share = "all" if len(self.earlier) == len(self.evidence) else str(len(self.earlier))
        return f"{share} of its {len(self.evidence)} verdicts come from an earlier form of their tests"


def kept(results: Path) -> list[Kept]:
    """Return the bundles in a folder. Raises RecordError: one is damaged or was edited."""
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
    """The page in Markdown as it should be."""
    found = kept(results)
    named = [
        f"- [{_plain(one.machine)}](../../benchmarks/results/{one.name})" + (f": {one.note}" if one.note else "")
        for one in found
    ]
    meanings = "\n".join(f"| {verdict} | {text} |" for verdict, text in MEANS.items())
    lines = [HEAD.format(meanings=meanings, bundles="\n".join(named) or "none is kept yet"), *_flips(found)]
    for number, title in ARTICLES.items():
        lines.append(f"\n## {title}\n")
        lines += [_section(claim, found) for claim in all_claims() if _article(claim) == number]
    return "\n".join(lines).rstrip() + "\n"


def html_page(results: Path = RESULTS) -> str:
    """The page with filters as it should be: one file, whose own script alone may run, and which asks for nothing."""
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
    )
    return text.rstrip() + "\n"


def _harmless(value: Any) -> Any:
    """Every text that is put into the page, before it is escaped; what is markup already is ours."""
    return words.plain(value, longest=2000) if isinstance(value, str) and not isinstance(value, Markup) else value


def _article(claim: Claim) -> str:
    return claim.article.partition(".")[0]


def _differing(found: Sequence[Kept]) -> list[tuple[Kept, Evidence, Kept, Evidence]]:
    """Verdicts that are settled otherwise in another bundle: both, each with where it is from."""
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
    return ["Verdicts that differ:\n", *rows] if rows else []


def _section(claim: Claim, found: Sequence[Kept]) -> str:
    rows = [f"### {claim.id}\n", f"“{_plain(claim.says)}”\n"]
    rows.append(f"- **Kind**: {claim.kind}" + (f", row {claim.article}" if claim.article else ""))
    told = {"So is": _plain(claim.fact), "Instead": _plain(claim.instead), "Source": claim.source}
    rows += [f"- **{name}**: {text}" for name, text in told.items() if text]
    for kept_in in found:
        if one := kept_in.evidence.get(claim.id):
            seen = f". {_plain(one.seen)}" if one.seen else ""
            rows.append(f"- **{_plain(kept_in.machine)}**: *{one.verdict}*{seen}")
    return "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """Escape what Markdown would take for its own."""
    for sign in "*_[<":
        text = text.replace(sign, f"\\{sign}")
    return words.plain(text, longest=2000)


def _fact(bundle: Bundle, name: str) -> str:
    """A fact in words; "" where it is unknown."""
    value = bundle.facts.get(name, "")
    return "" if isinstance(value, Unknown) else str(value)


def _machine(bundle: Bundle) -> str:
    """A machine and its torch, in words."""
    machine = _fact(bundle, "gpu.name") or f"{_fact(bundle, 'host.num_cores')} cores"
    return f"{machine}, torch {_fact(bundle, 'torch.version')}"


if __name__ == "__main__":
    print(html_page() if "--html" in sys.argv[1:] else page(), end="")
