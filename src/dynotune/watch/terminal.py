"""The view in a terminal: a line every few seconds, or a screen that is drawn anew."""

from __future__ import annotations

import time
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dynotune.schema import redaction
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import GpuView, StepTimes, View
from dynotune.text import words

LINE_EVERY_S = 5.0
MOST_PROCESSES = 12
WIDE, NARROW_COLUMNS = 70, 4
"""In a terminal that is not so wide, tables show their first columns."""


class Lines:
    """A line each five seconds, and one for each alert when it begins, to a file of their own."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._last_s = file, float("-inf")
        self._alerted: set[tuple[str, str]] = set()

    def __call__(self, view: View) -> None:
        clock = time.strftime("%H:%M:%S", time.localtime(view.clock_s))
        keys = {(alert.id, alert.whose) for alert in view.alerts}
        for alert in view.alerts:
            if (alert.id, alert.whose) not in self._alerted:
                self._print(f"{clock}  ALERT {alert.id}: {alert.text} (dynotune explain {alert.id})")
                for line in alert.details:
                    self._print(f"{clock}    {line}")
        self._alerted = keys
        if view.at_s - self._last_s >= LINE_EVERY_S or view.state == "ended":
            self._last_s = view.at_s
            self._print(f"{clock}  {summary(view)}")

    def _print(self, text: str) -> None:
        self._file.write(words.plain(redaction.redacted(text)) + "\n")
        self._file.flush()


def summary(view: View) -> str:
    """The view in one line."""
    if not view.steps_s:
        return view.verdict
    lead = view.steps_s[0]
    parts = [f"step {view.num_steps:,}", f"{words.duration(lead.median_s)} (p99 {words.duration(lead.p99_s)})"]
    if view.samples_per_s is not None:
        parts.append(f"{words.rate(view.samples_per_s)} samples/s")
    return "  ".join([*parts, view.verdict])


class Screen:
    """The whole view, drawn once a second; as wide as the terminal is then."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop")
        self._live.start()

    def __call__(self, view: View) -> None:
        self._live.update(drawn(view, self._live.console.width), refresh=True)

    def close(self, view: View | None) -> None:
        """Leave the terminal as it was, with the last word below."""
        self._live.stop()
        if view is not None:
            self._live.console.print(Text(words.plain(summary(view))))


def drawn(view: View, width: int) -> RenderableType:
    colour = {"input": "yellow", "stalled": "bold red", "device": "green"}.get(view.cause, "bold")
    parts: list[RenderableType] = [
        Text(words.plain(" ".join(view.command) or view.run), style="dim", overflow="ellipsis", no_wrap=True),
        Text(words.plain(view.verdict), style=colour),
    ]
    for alert in view.alerts:
        parts.append(Text(words.plain(f"! {alert.id}: {alert.text}"), style="red"))
        parts += [Text(f"    {words.plain(line)}", style="dim") for line in alert.details[:8]]
    if view.shares is not None:
        device = None if isinstance(view.shares.device, Unknown) else view.shares.device
        shown = f"input {words.share(view.shares.input)} · kernels on the GPU {words.share(device)}"
        shown += f" · rest {words.share(view.shares.rest)}"
        parts.append(Text(shown))
    parts.append(
        _table(["rank", "step", "median", "p95", "p99", "samples/s", "input", ""], map(_rank, view.steps_s), width)
    )
    if isinstance(view.gpus, Unknown):
        parts.append(Text(f"GPUs: unknown: {view.gpus.reason}", style="dim"))
    elif view.gpus:
        names = [
            "GPU",
            "kernels run",
            "SM active",
            "tensor",
            "memory",
            "power",
            "clock",
            "°C",
            "PCIe in/out",
            "limited by",
        ]
        parts.append(_table(names, map(_gpu, view.gpus), width))
    cores = f"{_cores(view.cores)} of {view.num_cpus} cores, others {_cores(view.others_cores)}"
    parts.append(
        Text(
            f"{view.num_processes} process{'es' * (view.num_processes != 1)}, {cores}, "
            f"memory {words.num_bytes(view.memory_bytes)} of {words.num_bytes(view.memory_limit_bytes)}"
        )
    )
    rows = [
        [
            str(each.pid),
            each.role,
            _cores(each.cores),
            str(each.num_threads),
            words.num_bytes(each.rss_bytes),
            each.state,
        ]
        for each in view.processes[:MOST_PROCESSES]
    ]
    parts.append(_table(["pid", "process", "cores", "threads", "memory", "state"], rows, width))
    parts += [Text(f"step {mark.step:,}: {mark.kind}, {mark.text}", style="dim") for mark in view.marks[-3:]]
    parts += [Text(words.plain(note), style="dim") for note in view.notes[-2:]]
    return Group(*parts)


def _table(names: list[str], rows: Any, width: int) -> Table:
    num = len(names) if width >= WIDE else NARROW_COLUMNS
    table = Table(box=None, pad_edge=False, header_style="dim", expand=False)
    for name in names[:num]:
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(words.plain(cell)) for cell in row[:num]))
    return table


def _rank(each: StepTimes) -> list[str]:
    times = [words.duration(value, column=True) for value in (each.median_s, each.p95_s, each.p99_s)]
    per_s = "" if each.samples_per_s is None else words.rate(each.samples_per_s)
    return [each.rank, f"{each.num_steps:,}", *times, per_s, words.share(each.input_share), "lags" if each.lag else ""]


def _gpu(gpu: GpuView) -> list[str]:
    def said(value: float | Unknown, unit: str) -> str:
        return "?" if isinstance(value, Unknown) else f"{value:.0f}{unit}"

    used = "?" if isinstance(gpu.memory_used_bytes, Unknown) else words.num_bytes(gpu.memory_used_bytes)
    links = [
        "?" if isinstance(value, Unknown) else words.bandwidth(value)
        for value in (gpu.pcie_rx_bytes_per_s, gpu.pcie_tx_bytes_per_s)
    ]
    return [
        str(gpu.nvml_index), said(gpu.utilisation_percent, "%"), said(gpu.sm_active_percent, "%"),
        said(gpu.tensor_active_percent, "%"), used, said(gpu.power_w, " W"), said(gpu.sm_clock_mhz, " MHz"),
        said(gpu.temperature_c, ""), "/".join(links), ", ".join(gpu.clock_limits) or "nothing",
    ]  # fmt: skip


def _cores(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"
