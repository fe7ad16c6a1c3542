"""Show a recipe in the terminal: its settings, their proofs, and the result of a verification."""

from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report.catalogue import EFFECT_STYLES
from dynotune.report.layout import fields, table
from dynotune.schema.knob import Effect
from dynotune.schema.recipe import EFFECTS, LABELS, Header, Recipe, Verification, proof_of
from dynotune.schema.setting import Setting
from dynotune.text import words

HOW = {
    "ablation": ("ablated", "with the setting against without it, each time with the other settings tried"),
    "confirmation": ("confirmed", "all settings together against none"),
}
RULE = (
    "Met: better again, and by no less than the stated interval's lower end. Not met: not better, or the "
    "new interval "
    "lies below the stated one. Else undecided."
)
STYLES = {"met": "bold green", "not-met": "bold red", "undecided": "bold yellow"}
NAMES = {"met": "met again", "not-met": "not met", "undecided": "undecided"}


def recipe_report(
    recipe: Recipe, *, effects: Mapping[str, Effect], problems: Mapping[str, str]
) -> RenderableType:
    """Show the header, a row per setting with its proof, and the machine.

    Args:
        effects: knob to its effect by the catalogue; the effect that the recipe states may be wrong.
        problems: knob to the reason why `dynotune run` refuses the setting.
    """
    parts: list[RenderableType] = [
        _header(recipe.recipe),
        Padding(_settings(recipe, effects, problems), (1, 0)),
    ]
    labels = {name: label.removeprefix("number of ") for name, label in LABELS.items()}
    facts = [(labels[name], words.plain(str(fact))) for name, fact in recipe.facts.items() if name in labels]
    if facts:
        parts += [Text("Proved on", style="bold"), fields(facts)]
    else:
        parts.append(Text("The recipe does not say on which machine it was proved.", style="yellow"))
    parts += [Text.assemble(("refused: ", "red"), words.plain(why)) for why in problems.values()]
    return Group(*parts)


def _header(head: Header) -> RenderableType:
    if head.speedup is None:
        stated = Text("no speed-up is stated", style="yellow")
    else:
        of_what = "blocks within one process" if head.within else "pairs"
        blocks = f" and {head.num_blocks} blocks within one process" if head.num_blocks else ""
        pairs = "" if head.num_pairs is None else f", {head.num_pairs} {of_what}{blocks}"
        stated = Text.assemble((words.with_interval(head.speedup, head.ci), "bold"), pairs)
    rows: list[tuple[str, str | Text]] = [
        ("command", words.plain(words.command(head.command)) if head.command else "not told"),
        ("created", words.plain(head.created) or words.UNKNOWN),
        ("objective", head.objective),
        ("together", stated),
    ]
    return fields(rows)


def _settings(recipe: Recipe, effects: Mapping[str, Effect], problems: Mapping[str, str]) -> RenderableType:
    if not recipe.settings:
        return Text("It has no settings.", style="yellow")
    rows = table(
        "Setting:wide", "Speed-up:whole", "Interval:whole", "Proof:whole", "Effect:whole", style="bold"
    )
    meanings: dict[str, str] = {}
    for knob, value in recipe.settings.items():
        setting = Text(words.plain(str(Setting(knob, value))))
        proof, known = proof_of(recipe, knob), effects.get(knob)
        effect = Text("") if known is None else Text(known, style=EFFECT_STYLES[known])
        meanings |= {} if known is None else {known: EFFECTS[known]}
        if knob in problems:
            rows.add_row(setting, "", "", Text("refused", style="red"), "")
        elif proof is None:
            rows.add_row(setting, "", "", Text("none", style="yellow"), effect)
        else:
            numbers = words.times(proof.speedup, digits=3), words.interval(proof.ci)
            of_what = "blocks" if recipe.recipe.within and proof.by == "confirmation" else "pairs"
            how = f"{HOW[proof.by][0]}, {proof.num_pairs} {of_what}"
            rows.add_row(setting, *numbers, how, effect)
            meanings |= dict([HOW[proof.by]])
    meanings |= {
        proof.knob: f"left out with {' and '.join(map(words.plain, proof.left_out_too))}, which needs it"
        for proof in recipe.proof
        if proof.left_out_too and proof_of(recipe, proof.knob) is proof
    }
    legend = [Text(f"{word:<10}  {meaning}", style="dim") for word, meaning in meanings.items()]
    others = [
        Text.assemble(
            ("no proof: ", "yellow"), words.plain(f"{proof.knob} was proved at another value, {proof.value}")
        )
        for proof in recipe.proof
        if proof.knob in recipe.settings and proof_of(recipe, proof.knob) is None
    ]
    others += [
        Text.assemble(
            ("effect: ", "yellow"),
            f"{words.plain(proof.knob)} is {effects[proof.knob]}, not {proof.effect} as stated",
        )
        for proof in recipe.proof
        if proof.effect != effects.get(proof.knob, proof.effect)
    ]
    return Group(rows, *([Text()] if legend or others else []), *legend, *others)


def verification_report(verification: Verification) -> RenderableType:
    """Say whether the recipe's speed-up was met again, below the comparison's own table."""
    stated, found, outcome = verification.stated, verification.comparison, verification.outcome
    before = "no speed-up"
    if stated is not None:
        before = words.with_interval(stated, verification.stated_ci)
    lines = [
        Text.assemble(("stated    ", "dim"), before),
        Text.assemble(
            ("now       ", "dim"), words.with_interval(found.speedup, found.ci, digits=words.digits(found.ci))
        ),
        Text.assemble(("recipe    ", "dim"), (NAMES[outcome], STYLES[outcome])),
        Text.assemble(("          ", "dim"), verification.reason),
        Text(RULE, style="dim"),
    ]
    lines += [
        Text.assemble(("not as it was proved: ", "yellow"), words.plain(text))
        for text in verification.differs
    ]
    return Padding(Group(*lines), (1, 0, 0, 0))
