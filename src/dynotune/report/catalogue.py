"""Knobs, as a table and one at a time."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dynotune.schema.knob import (
    AllocConf,
    Argument,
    Attr,
    Call,
    Constructor,
    Env,
    Interpreter,
    Knob,
    Library,
    Method,
    Module,
    Preload,
    Revision,
    Site,
)

__all__ = ["explanation", "table"]

EFFECTS = {
    "exact": "the same results",
    "sampling": "the same samples in the same order, other random draws",
    "numerics": "results may differ by rounding",
    "semantics": "may change what the program computes",
    "system": "changes the machine; dynotune never applies it",
}
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
    """All of `knobs`, a row each, with what the words in it mean below."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    rows.add_column("Knob", no_wrap=True)
    rows.add_column("What it does", overflow="fold")
    family = ""
    for knob in knobs:
        if family and knob.id.partition(".")[0] != family:
            rows.add_row()
        family = knob.id.partition(".")[0]
        rows.add_row(
            Text.assemble(
                (knob.id, "bold"), "\n  ", (knob.effect, EFFECT_STYLES[knob.effect]), (f", {knob.when}", "dim")
            ),
            Text.assemble(
                knob.doc,
                (f"\nValues: {values(knob)}. Default: {knob.default.rstrip('.')}.", "dim"),
                (f"\n{knob.source}", "dim"),
            ),
        )
    effects = sorted({knob.effect for knob in knobs}, key=list(EFFECTS).index)
    moments = sorted({knob.when for knob in knobs}, key=list(MOMENTS).index)
    legend = Text("\n")
    for words, meaning in ((effects, EFFECTS), (moments, MOMENTS)):
        legend.append_text(Text("\n").join(Text(f"{word:<12}{meaning[word]}", style="dim") for word in words))
        legend.append("\n")
    return Group(rows, legend)


def explanation(knob: Knob) -> RenderableType:
    """One knob, with everything that is known of it."""
    lines = Table.grid(padding=(0, 2))
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column(overflow="fold")
    lines.add_row("values", values(knob))
    lines.add_row("default", knob.default)
    lines.add_row("effect", f"{knob.effect}: {EFFECTS[knob.effect]}")
    lines.add_row("latest", MOMENTS[knob.when])
    lines.add_row("set at", place(knob.site))
    if knob.needs:
        lines.add_row("looks at", ", ".join(knob.needs))
    if knob.unless:
        lines.add_row("not where", knob.unless)
    if knob.hurts:
        lines.add_row("hurts", knob.hurts)
    lines.add_row("in process", _in_process(knob))
    lines.add_row("source", knob.source)
    example = Text(f"dynotune compare {knob.id}={_example(knob)} -- python train.py", style="bold")
    return Group(Text(knob.id, style="bold"), Text(knob.doc), Padding(lines, (1, 0)), example)


def _in_process(knob: Knob) -> str:
    """Whether `compare` can switch it on and off within one run of the command, in words."""
    if knob.not_switched:
        return f"not compared within one run: {knob.not_switched}"
    if knob.when in ("process", "before_cuda"):
        return "not compared within one run: it is read once"
    return "can be compared within one run of the command"


def values(knob: Knob) -> str:
    """The values that a knob takes, in words."""
    if knob.values:
        return " | ".join(_spelled(value) for value in knob.values)
    if knob.type == "bool":
        return "true | false"
    kind = {"int": "a whole number", "float": "a number", "str": "text"}[knob.type]
    return kind if knob.minimum is None else f"{kind}, {knob.minimum:g} or more"


def place(site: Site) -> str:
    """Where a knob is set, in words."""
    match site:
        case Env(name):
            return f"the environment variable {name}"
        case AllocConf(key):
            return f"{key} in PYTORCH_ALLOC_CONF"
        case Preload(libraries):
            return f"LD_PRELOAD ({', '.join(libraries)})"
        case Attr(path):
            return path
        case Call(setter, _):
            return f"{setter}()"
        case Constructor(targets, argument) | Method(targets, argument):
            return f"{argument}= of {', '.join(targets)}"
        case Module(action):
            return f"the outermost module, before its first call ({action})"
        case Library(action):
            return f"libraries that the program imports ({action})"
        case Argument(name):
            return f"the command, in place of {{{name}}}"
        case Revision():
            return "the command's view of its repository"
        case Interpreter():
            return "the command's first word"


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _example(knob: Knob) -> str:
    """A value that somebody might try: the last that is listed, else a small number."""
    if knob.values:
        return _spelled(knob.values[-1])
    if knob.type == "bool":
        return "true"
    if knob.type == "str":
        return "VALUE"
    return f"{max(2, knob.minimum or 0):g}" if knob.maximum is None else f"{knob.maximum:.0f}"
