"""Lay out the state of a run that goes on: figures, what happened, and what slows the steps down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from dynotune.report.blocks import (
    Answer,
    Column,
    CommandLine,
    Curve,
    Fields,
    Lines,
    Note,
    On,
    Piece,
    Plot,
    Report,
    Section,
    Table,
    Tile,
    Tiles,
    Tone,
)
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import Alert, Cause, Epoch, GpuView, Mark, View
from dynotune.text import units, words

MOST_MARKS, MOST_DETAILS, MOST_ROWS = 5, 8, 64
SHORT_OF_MEMORY = 0.9
GIB = 2.0**-30
TONES: dict[Cause, Tone] = {"input": "wary", "stalled": "bad", "device": "good"}
STATES = {"starting": "Starting", "running": "Running", "ended": "Ended"}
PLOTS = (
    Plot("Step time", [Curve("step", "mean"), Curve("step", "longest", is_most=True)], "ms", 1000.0),
    Plot("Wait for input in a step", [Curve("wait", "wait")], "ms", 1000.0),
    Plot(
        "GPU at work",
        [
            Curve("gpu.kernel_running_percent", "kernels run"),
            Curve("gpu.sm_active_percent", "SM active"),
            Curve("gpu.tensor_active_percent", "tensor cores active"),
        ],
        "%",
        most=100.0,
    ),
    Plot("GPU memory in use", [Curve("gpu.memory_used_bytes", "memory")], "GiB", GIB),
    Plot("Power", [Curve("gpu.power_w", "power")], "W"),
    Plot("Cores kept busy", [Curve("cores", "this run"), Curve("others", "other programs")]),
    Plot("Memory of the run's processes", [Curve("rss", "memory")], "GiB", GIB),
)
NAMES = {"nvml": "NVML", "sm": "SM", "pcie": "PCIe", "pid": "PID", "rss": "RSS"}
"""Words of fields that are written in another way than a field's name can be."""


def layout(view: View) -> Report:
    """Lay out the newest state of a run."""
    return Report(
        kicker="dynotune watch",
        answer=_answer(view),
        command=words.shell(view.command),
        head=[Fields([("command", words.command(view.command))], on=On.TERMINAL), Tiles(list(_tiles(view)))],
        use=_use(view),
        sections=[
            *_alerts(view.alerts),
            *_happened(view),
            Section("Over time", _plots(view), on=On.PAGE),
            *_tables(view),
            *_notes(view),
        ],
        footer="The last minute at a glance, the last half hour over time. Nothing here leaves this machine.",
    )


def _answer(view: View) -> Answer:
    large = view.headline or STATES[view.state]
    rest = ", ".join([STATES[view.state].lower(), *_steps_and_time(view)])
    tone = TONES.get(view.cause, "strong")
    return Answer(large=large, rest=rest, sentence=view.verdict, line=view.verdict, tone=tone)


def _steps_and_time(view: View) -> list[str]:
    parts = [f"step {view.num_steps:,}"] if view.num_steps else []
    return parts + ([f"for {words.clock(view.at_s - view.begun_s)}"] if view.begun_s is not None else [])


# Figures at a glance


def _tiles(view: View) -> Iterator[Tile]:
    lead = view.steps_s[0] if view.steps_s else None
    tone: Tone = ""
    if lead is not None:
        known = lead.median_s is not None
        times = f"{words.duration(lead.median_s)} each, p99 {words.duration(lead.p99_s)}" if known else ""
        yield _tile(view, "steps", per_second(view.steps_per_s), times, "steps_per_s")
        if view.samples_per_s is not None:
            yield _tile(view, "samples", per_second(view.samples_per_s), "", "samples_per_s")
        if view.epoch is not None:
            yield _epoch(view.epoch)
        tone = "wary" if view.cause == "input" else ""
        share = words.UNKNOWN if lead.input_share is None else words.share(lead.input_share)
        yield _tile(view, "wait for input", share, "of the steps' time", "wait_share", tone)
    yield from _gpu(view)
    cores = words.UNKNOWN if view.cores is None else f"{view.cores:.1f} of {view.num_cpus}"
    yield _tile(
        view,
        "CPU, this run",
        cores,
        f"cores, of {view.num_processes} process{'es' * (view.num_processes != 1)}",
        "cores",
    )
    others = view.others or 0.0
    if view.others is not None:
        tone = "wary" if others >= view.num_cpus / 2 else ""
        yield _tile(
            view,
            "CPU, others",
            f"{others:.1f} of {view.num_cpus}",
            "cores, of other programs",
            "others",
            tone,
        )
    left = view.memory_left_bytes
    detail = "" if left is None else f"{words.num_bytes(left)} free"
    yield _tile(view, "host memory", words.num_bytes(view.memory_bytes), detail, "rss")


def _tile(view: View, name: str, figure: str, detail: str, values: str, tone: Tone = "") -> Tile:
    return Tile(name, figure, detail, view.recent.get(values, ()), tone=tone)


def per_second(rate: float | None) -> str:
    return words.UNKNOWN if rate is None else f"{words.rate(rate)}/s"


def _epoch(epoch: Epoch) -> Tile:
    if not epoch.num_steps:
        return Tile("epoch", f"{epoch.number:,}", f"step {epoch.step:,} of it")
    detail = f"step {epoch.step:,} of about {epoch.num_steps:,}"
    return Tile("epoch", f"{epoch.number:,}", detail, share=min(1.0, epoch.step / epoch.num_steps))


def _gpu(view: View) -> Iterator[Tile]:
    gpus = view.gpus if isinstance(view.gpus, list) else []
    if not gpus:
        return
    which = f"{len(gpus)} GPUs, mean" if len(gpus) > 1 else ""
    running = _mean(gpus, "kernel_running_percent")
    power = _mean(gpus, "power_w")
    detail = ", ".join(filter(None, [which, "" if power is None else f"{power:.0f} W"]))
    figure = words.UNKNOWN if running is None else f"{running:.0f}%"
    yield _tile(view, "GPU busy", figure, detail, "gpu.kernel_running_percent")
    used, whole = _mean(gpus, "memory_used_bytes"), _mean(gpus, "memory_bytes")
    if used is not None:
        full: Tone = "wary" if whole and used > SHORT_OF_MEMORY * whole else ""
        of = f"of {words.num_bytes(whole)}" if whole else ""
        detail = ", ".join(filter(None, [of, which]))
        yield _tile(view, "GPU memory", words.num_bytes(used), detail, "gpu.memory_used_bytes", full)


def _mean(gpus: Sequence[GpuView], field: str) -> float | None:
    known = [value for gpu in gpus if not isinstance(value := getattr(gpu, field), Unknown)]
    return sum(known) / len(known) if known else None


# What to type


def _use(view: View) -> list[CommandLine]:
    """Return the line that finds out more: while the program stalls, about its threads; else about its
    steps."""
    if view.cause == "stalled" and view.steps_s:
        pid = str(view.steps_s[0].pid)
        return [CommandLine("What its threads do now", ["dynotune", "diagnose", "--pid", pid])]
    command = words.shell(view.command)
    if len(command) < 2 or not view.num_steps:
        return []  # only the folder's name is known, or no step was made yet
    if view.cause == "input":
        what = "Which settings of the loader help, proved on this command"
        return [CommandLine(what, ["dynotune", "tune", "--", *command])]
    return [CommandLine("Where a step goes, line by line", ["dynotune", "diagnose", "--", *command])]


# What happened


def _alerts(alerts: Sequence[Alert]) -> list[Piece]:
    texts = [Lines((f"{alert.id}: {alert.text}", *alert.details[:MOST_DETAILS])) for alert in alerts]
    notes: list[Piece] = [Note(text, tone="bad") for text in texts]
    return [Section("Alerts", notes)] if notes else []


def told(marks: Sequence[Mark]) -> list[Mark]:
    """Choose at most five marks, the newest first. An epoch is no event: its tile tells it."""
    return [mark for mark in marks if mark.kind != "epoch"][: -MOST_MARKS - 1 : -1]


def _happened(view: View) -> list[Piece]:
    rows = [
        [f"{words.clock(view.at_s - mark.at_s)} ago", f"step {mark.step:,}", mark.text]
        for mark in told(view.marks)
    ]
    columns = [Column("", "whole"), Column("", "whole"), Column("")]
    return [Section("What happened", [Table("", columns, rows, cards=False)])] if rows else []


def _plots(view: View) -> list[Plot]:
    """Return the plots whose values are known."""
    known = set(view.recent)
    if view.steps_s:
        known |= {"step", "wait"}
    gpus = view.gpus if isinstance(view.gpus, list) else []
    known |= {
        f"gpu.{field}"
        for gpu in gpus
        for field in GpuView.__struct_fields__
        if isinstance(getattr(gpu, field), int | float)
    }
    return [plot for plot in PLOTS if any(curve.values in known for curve in plot.curves)]


# Tables


def _tables(view: View) -> list[Piece]:
    gpus = view.gpus if isinstance(view.gpus, list) else []
    is_of_interest = On.ALL_OF_IT if len(view.steps_s) < 2 else On.EVERYWHERE
    parts: list[tuple[str, Sequence[msgspec.Struct], On]] = [
        ("Ranks", view.steps_s, is_of_interest),
        ("GPUs", gpus, On.ALL_OF_IT),
        ("Processes", view.processes, On.ALL_OF_IT),
    ]
    return [Section(title, [table(rows)], on=on) for title, rows, on in parts if rows]


def table(rows: Sequence[msgspec.Struct]) -> Table:
    """Lay out structs with a column for each field that any of them knows, by the unit of its name."""
    fields = rows[0].__struct_fields__
    shown = [field for field in fields if any(_says(getattr(row, field)) for row in rows)]
    columns = [_column(field, rows) for field in shown]
    cells = [[_cell(field, getattr(row, field)) for field in shown] for row in rows[:MOST_ROWS]]
    return Table("", columns, cells)


def _says(value: Any) -> bool:
    """Tell whether a value is worth a column; 0 is."""
    return value is not False and value not in (None, "", [])


def _column(field: str, rows: Sequence[msgspec.Struct]) -> Column:
    name = " ".join(NAMES.get(word, word) for word in units.unit_of(field)[0].removeprefix("num_").split("_"))
    is_number = all(isinstance(getattr(row, field), int | float | Unknown | None) for row in rows)
    return Column(name, "number" if is_number else "whole")


def _cell(field: str, value: Any) -> str:
    if value is None or isinstance(value, Unknown):
        return words.UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field == "samples_per_s":
        return per_second(value)
    if unit := units.unit_of(field)[1]:
        return unit.write(value)
    if isinstance(value, list | str):
        return value if isinstance(value, str) else ", ".join(value)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value}"


def unknown(view: View) -> list[str]:
    """Return a text on why some values are unknown."""
    gpus: Sequence[dict[str, Any]] = [{"gpus": view.gpus}]
    if isinstance(view.gpus, list):
        gpus = [msgspec.structs.asdict(gpu) for gpu in view.gpus]
    items = [item for gpu in gpus for item in gpu.items()]
    found = [(field, value.reason) for field, value in items if isinstance(value, Unknown)]
    reasons = {reason: units.unit_of(field)[0].replace("_", " ") for field, reason in found}
    return [f"{name}: {reason}" for reason, name in reasons.items()]


def _notes(view: View) -> list[Piece]:
    notes: list[Piece] = [Note(note, tone="dim") for note in [*view.notes, *unknown(view)]]
    return [Section("Not seen", notes, on=On.ALL_OF_IT)] if notes else []
