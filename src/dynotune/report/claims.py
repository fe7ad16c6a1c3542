"""Show claims with the evidence for or against them in the terminal."""

from collections import Counter
from collections.abc import Container, Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.layout import fields, one_line, table
from dynotune.report.loudness import is_brief
from dynotune.schema.claims import CHANGES, SETTLED, Bundle, Claim
from dynotune.text import words


def claim_report(claim: Claim, names: Container[str] = ()) -> RenderableType:
    """Show one claim: what people say, what is true, and how the claim is tested; or only the rows called
    `names`."""
    rows = [
        ("claim", claim.says),
        ("seen here", claim.seen),
        (
            "what is true",
            claim.fact or ("The claim is true." if claim.read == "true" else "This is not known."),
        ),
        ("instead", claim.instead),
        ("source", claim.source),
        ("findings", ", ".join(claim.bears_on)),
        ("test", _test(claim)),
        ("changes with", CHANGES.get(claim.kind, "another machine, other versions")),
    ]
    shown = [(name, words.plain(text)) for name, text in rows if text and (not names or name in names)]
    head = Text.assemble(
        (claim.id, "bold"), f"  {claim.kind}", f"  article {claim.article}" if claim.article else ""
    )
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
    """Show one claim a line on a terminal, where `dynotune claims show ID` has the rest."""
    rows = table("Claim:whole", "Tested:whole", f"What people claim:{'line' if is_brief() else 'wide'}")
    for claim in claims:
        tested = "no" if claim.untestable else claim.needs or "anywhere"
        rows.add_row(claim.id, Text(tested, "dim"), one_line(claim.says) if is_brief() else claim.says)
    return rows


def evidence_table(bundle: Bundle) -> RenderableType:
    rows = table("Claim:whole", "Verdict:whole", "Observation:wide")
    for one in bundle.evidence:
        verdict = Text(one.verdict, "bold" if one.verdict in SETTLED else "dim")
        rows.add_row(Text(words.plain(one.id)), verdict, Text(words.plain(one.seen)))
    counts = Counter(one.verdict for one in bundle.evidence)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return Group(rows, Text(f"\n{summary}.", style="dim"))
