"""Show knobs, as a table or one at a time."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from dynotune.report import layout
from dynotune.report.loudness import is_brief
from dynotune.schema import knob as sites
from dynotune.schema.knob import Knob
from dynotune.schema.recipe import EFFECTS

MOMENTS = {
    "process": "before the process starts",
    "before_cuda": "before CUDA starts",
    "construct": "when the object is made",
    "any": "at any time",
}
EFFECT_STYLES = {
    "exact": "green",
    "sampling": "green",
    "numerics": "yellow",
    "semantics": "red",
    "system": "red",
}


def table(knobs: Sequence[Knob]) -> RenderableType:
    """Build a table with one row per knob, and explain below the table what its columns mean."""
    rows = layout.table("Knob:whole", f"What it does:{'line' if is_brief() else 'text'}", style="bold")
    family = ""
    for knob in knobs:
        before, family = family, knob.id.partition(".")[0]
        if before not in ("", family) and not is_brief():
            rows.add_row()
        if is_brief():
            rows.add_row(
                Text(knob.id, "bold"), layout.one_line(knob.doc.partition(". ")[0].rstrip(".") + ".")
            )
            continue
        default = f"\nValues: {values(knob)}. Default: {knob.default.rstrip('.')}.\n{knob.source}"
        effect = (knob.effect, EFFECT_STYLES[knob.effect]), (f", {knob.when}", "dim")
        rows.add_row(
            Text.assemble((knob.id, "bold"), "\n  ", *effect), Text.assemble(knob.doc, (default, "dim"))
        )
    if is_brief():
        return Group(
            rows, Text("\ndynotune knobs ID explains one; --verbose shows values and sources.", "dim")
        )
    effects = sorted({knob.effect for knob in knobs}, key=list(EFFECTS).index)
    moments = sorted({knob.when for knob in knobs}, key=list(MOMENTS).index)
    legend = Text("\n")
    for words, meaning in ((effects, EFFECTS), (moments, MOMENTS)):
        legend.append_text(Text("\n").join(Text(f"{word:<12}{meaning[word]}", style="dim") for word in words))
        legend.append("\n")
    return Group(rows, legend)


def explanation(knob: Knob) -> RenderableType:
    """Explain one knob with all of its fields."""
    rows = [
        ("values", values(knob)),
        ("default", knob.default),
        ("effect", f"{knob.effect}: {EFFECTS[knob.effect]}"),
        ("latest", MOMENTS[knob.when]),
        ("set at", place(knob.site)),
        ("looks at", ", ".join(knob.needs)),
        ("not where", knob.unless),
        ("hurts", knob.hurts),
        ("in process", _in_process(knob)),
        ("source", knob.source),
    ]
    lines = layout.fields((name, text) for name, text in rows if text)
    example = Text(f"dynotune compare {knob.id}={_example(knob)} -- python train.py", style="bold")
    return Group(Text(knob.id, style="bold"), Text(knob.doc), Padding(lines, (1, 0)), example)


def _in_process(knob: Knob) -> str:
    if knob.not_switched:
        return f"not compared within one run: {knob.not_switched}"
    if knob.when in ("process", "before_cuda"):
        return "not compared within one run: the program reads it only once"
    return "can be compared within one run of the command"


def values(knob: Knob) -> str:
    if knob.values:
        return " | ".join(_spelled(value) for value in knob.values)
    if knob.type == "bool":
        return "true | false"
    kind = {"int": "a whole number", "float": "a number", "str": "text"}[knob.type]
    return kind if knob.minimum is None else f"{kind}, {knob.minimum:g} or more"


def place(site: sites.Site) -> str:
    match site:
        case sites.Env(name):
            return f"the environment variable {name}"
        case sites.AllocConf(key):
            return f"{key} in PYTORCH_ALLOC_CONF"
        case sites.Preload(libraries):
            return f"LD_PRELOAD ({', '.join(libraries)})"
        case sites.Attr(path):
            return path
        case sites.Call(setter, _):
            return f"{setter}()"
        case sites.Constructor(targets, argument) | sites.Method(targets, argument):
            return f"{argument}= of {', '.join(targets)}"
        case sites.Module(action):
            return f"the outermost module, before its first call ({action})"
        case sites.Library(action):
            return f"libraries that the program imports ({action})"
        case sites.Argument(name):
            return f"the command, in place of {{{name}}}"
        case sites.Revision():
            return "the command's view of its repository"
        case sites.Interpreter():
            return "the command's first word"


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _example(knob: Knob) -> str:
    """Return an example value for the knob: the last listed value, else a small number."""
    if knob.values:
        return _spelled(knob.values[-1])
    if knob.type == "bool":
        return "true"
    if knob.type == "str":
        return "VALUE"
    return f"{max(2, knob.minimum or 0):g}" if knob.maximum is None else f"{knob.maximum:.0f}"
