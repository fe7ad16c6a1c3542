"""Claims and what came of testing them: in the terminal, and as the page of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.layout import fields, table
from dynotune.schema.claims import CHANGES, Bundle, Claim, Evidence, Fate
from dynotune.schema.facts import Unknown
from dynotune.text import words

STYLES: dict[Fate, str] = {
    "holds": "green",
    "holds here": "green",
    "refuted": "bold red",
    "no effect here": "yellow",
    "failed": "bold magenta",
}
HEAD = """# Claims

Advice on speed and memory, article by article: what is so, and what came of testing it. `dynotune claims run ID` tests
one on your machine, `dynotune claims show ID` says how.

`holds here` means: under conditions that this machine meets, not everywhere. A gain counts once two comparisons show it.
Verdicts come from bundles alone: {bundles}.

This page is made from the ledger and the bundles: `make claims` writes it.
"""


def claim_report(claim: Claim) -> RenderableType:
    """One claim: what people say, what is so, how it is tested."""
    rows = [
        ("said", claim.says),
        ("seen", claim.seen),
        ("so is", claim.fact or ("It is so." if claim.read == "true" else "Not known.")),
        ("instead", claim.instead),
        ("source", claim.source),
        ("findings", ", ".join(claim.bears_on)),
        ("test", _test(claim)),
        ("changes with", CHANGES[claim.kind]),
    ]
    shown = [(name, words.plain(text)) for name, text in rows if text]
    head = Text.assemble((claim.id, "bold"), f"  {claim.kind}", f"  article {claim.article}" if claim.article else "")
    return Group(head, Padding(fields(shown), (0, 0, 0, 2)))


def _test(claim: Claim) -> str:
    if claim.untestable:
        return f"none: {claim.untestable}"
    needs = f" (needs {claim.needs})" if claim.needs else ""
    if claim.compare is None:
        return f"dynotune claims run {claim.id}{needs}: {claim.check}"
    arms = " ".join(claim.compare.settings), " ".join(claim.compare.baseline) or "nothing set"
    return f"dynotune claims run {claim.id}{needs}: {arms[0]} against {arms[1]} is {claim.compare.expects}"


def claims_table(claims: Iterable[Claim]) -> RenderableType:
    rows = table("Claim:whole", "Row:whole", "Kind:whole", "Tested:dim", "What is said:wide")
    for claim in claims:
        tested = "no" if claim.untestable else claim.needs or "anywhere"
        rows.add_row(claim.id, claim.article, claim.kind, tested, claim.says)
    return rows


def evidence_table(evidence: Sequence[Evidence]) -> RenderableType:
    rows = table("Claim:whole", "Verdict:whole", "Seen:wide")
    for one in evidence:
        rows.add_row(
            Text(words.plain(one.id)), Text(one.verdict, STYLES.get(one.verdict, "dim")), words.plain(one.seen)
        )
    counts = Counter(one.verdict for one in evidence)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return Group(rows, Text(f"\n{summary}.", style="dim"))


def claims_page(claims: Sequence[Claim], bundles: Mapping[str, Bundle], titles: Mapping[str, str]) -> str:
    """The reference of all claims as Markdown.

    Args:
        bundles: by the address that the page links to.
        titles: of the articles, by number.
    """
    found = {address: {one.id: one for one in bundle.evidence} for address, bundle in bundles.items()}
    named = [f"[{_machine(bundle)}]({address})" for address, bundle in bundles.items()]
    lines = [HEAD.format(bundles=", ".join(named) or "none is kept yet")]
    for number, title in [*titles.items(), ("", "Heard elsewhere")]:
        lines.append(f"\n## {title}\n")
        for claim in claims:
            if claim.article.partition(".")[0] == number:
                verdicts = [(_machine(bundles[address]), of.get(claim.id)) for address, of in found.items()]
                lines.append(_section(claim, verdicts))
    return "\n".join(lines).rstrip() + "\n"


def _section(claim: Claim, verdicts: Iterable[tuple[str, Evidence | None]]) -> str:
    article = f", row {claim.article}" if claim.article else ""
    rows = [f"“{claim.says}” ({claim.kind}{article})\n"]
    rows += [f"- **So is**: {claim.fact}"] * bool(claim.fact) + [f"- **Instead**: {claim.instead}"] * bool(
        claim.instead
    )
    rows.append(f"- **Source**: {claim.source}")
    rows += [f"- **{machine}**: *{one.verdict}*. {_escaped(one.seen)}" for machine, one in verdicts if one is not None]
    return "\n".join([f"### {claim.id}\n", *rows]) + "\n"


def _escaped(text: str) -> str:
    return words.plain(text).replace("<", "&lt;").replace("*", r"\*").replace("_", r"\_").replace("[", r"\[")


def _machine(bundle: Bundle) -> str:
    """A machine and its torch, in words."""
    facts = {name: "" if isinstance(value, Unknown) else str(value) for name, value in bundle.facts.items()}
    device = facts.get("gpu.name") or f"{facts.get('host.num_cores')} cores"
    return f"{device}, torch {facts.get('torch.version')}"
