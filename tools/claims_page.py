"""Writes docs/reference/claims.md from the claims and kept bundles: `python tools/claims_page.py > FILE`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

from dynotune.claims import all_claims, flipped, read
from dynotune.schema.claims import Bundle, Claim, Evidence
from dynotune.schema.facts import Unknown
from dynotune.text import words

RESULTS = Path(__file__).parents[1] / "benchmarks/results"
ARTICLES = {
    "0": "cuBLAS's workspace variable and Ultralytics",
    "1": "CUDA's JIT cache and a slow ML.NET start",
    "2": "Pinned memory and the DataLoader",
    "3": "YOLO: latency and GPU memory",
    "4": "Strategies for PyTorch on Linux",
    "": "Heard elsewhere",
}
HEAD = """# Claims

Advice on speed and memory, article by article: what is so, and what came of testing it. `dynotune claims run ID` tests
one on your machine, `dynotune claims show ID` says how, `dynotune claims list --filter WORD` finds one.

| verdict | means |
| --- | --- |
| holds | as it is said |
| holds here | under conditions that are met there |
| refuted | it is not so |
| no effect here | both arms of its comparison are the same |
| undecided | the machine was too noisy, or the time too short |
| not testable here | something is missing, or nothing could be measured |
| failed | its program did; nothing is said of the claim |

A gain counts once two comparisons show it. `dynotune claims verify BUNDLE` checks a bundle, and verdicts come from
bundles alone:

{bundles}

This page is made from the claims and the bundles: `make claims` writes it.
"""


def page() -> str:
    """The page as it should be."""
    bundles = {path.name: read(path)[0] for path in sorted(RESULTS.glob("claims_*.json"))}
    found = {name: {one.id: one for one in bundle.evidence} for name, bundle in bundles.items()}
    named = [f"- [{_machine(bundle)}](../../benchmarks/results/{name})" for name, bundle in bundles.items()]
    lines = [HEAD.format(bundles="\n".join(named) or "none is kept yet"), *_flips(bundles.values())]
    for number, title in ARTICLES.items():
        lines.append(f"\n## {title}\n")
        for claim in all_claims():
            if claim.article.partition(".")[0] == number:
                verdicts = {_machine(bundles[name]): of[claim.id] for name, of in found.items() if claim.id in of}
                lines.append(_section(claim, verdicts))
    return "\n".join(lines).rstrip() + "\n"


def _flips(bundles: Iterable[Bundle]) -> list[str]:
    """Lines on verdicts that are settled otherwise in another bundle."""
    rows = []
    for one, other in itertools.combinations(bundles, 2):
        for then, now in flipped(other, one.evidence):
            told = (f"{each.verdict} with {_machine(of)}" for of, each in ((one, then), (other, now)))
            rows.append(f"- [{now.id}](#{now.id}): {'; '.join(told)}")
    return ["Verdicts that differ:\n", *rows] if rows else []


def _section(claim: Claim, verdicts: Mapping[str, Evidence]) -> str:
    rows = [f"### {claim.id}\n", f"“{_plain(claim.says)}”\n"]
    rows.append(f"- **Kind**: {claim.kind}" + (f", row {claim.article}" if claim.article else ""))
    told = {"So is": _plain(claim.fact), "Instead": _plain(claim.instead), "Source": claim.source}
    rows += [f"- **{name}**: {text}" for name, text in told.items() if text]
    rows += [
        f"- **{machine}**: *{one.verdict}*" + (f". {_plain(one.seen)}" if one.seen else "")
        for machine, one in verdicts.items()
    ]
    return "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    """Escape what Markdown would take for its own."""
    for sign in "*_[<":
        text = text.replace(sign, f"\\{sign}")
    return words.plain(text, longest=2000)


def _machine(bundle: Bundle) -> str:
    """A machine and its torch, in words."""
    facts = {name: "" if isinstance(value, Unknown) else str(value) for name, value in bundle.facts.items()}
    return f"{facts['gpu.name'] or facts['host.num_cores'] + ' cores'}, torch {facts['torch.version']}"


if __name__ == "__main__":
    print(page(), end="")
