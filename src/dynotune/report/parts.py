"""The parts of bars: of a step, of a trace's window, of device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dynotune.schema.account import PARTS, RunPart
from dynotune.schema.memory import TermName

# Each colour stands out from a light page and from a dark one, by 3 to 1.
# fmt: off
_TERMS: dict[TermName, tuple[str, str, str, str]] = {
    "weights": ("weights", "█", "w", "#2e7d32"), "gradients": ("gradients", "▓", "g", "#a8841c"),
    "optimizer": ("optimizer states", "▒", "o", "#a0559a"), "buffers": ("buffers", "▌", "b", "#5c9430"),
    "inputs": ("inputs", "░", "i", "#00838f"), "activations": ("activations", "▚", "a", "#2f74c9"),
    "temporary": ("temporary buffers", "▞", "t", "#4a93d6"),
    "kept": ("other tensors of the program", "▄", "e", "#2f9488"),
    "workspaces": ("workspaces of cuBLAS", "▂", "s", "#566f7c"),
    "blocks": ("blocks in use", "▆", "k", "#2f74c9"),
    "graph-pools": ("pools of CUDA graphs", "▀", "p", "#d81b60"),
    "rounding": ("rounding by the allocator", "·", "r", "#8a8a8a"),
    "cache": ("cache of the allocator", "▖", "c", "#8f8576"),
    "fragmentation": ("free between blocks in use", "▘", "f", "#e64a19"),
    "context": ("CUDA context, loaded modules, NCCL", "▙", "x", "#7f97a3"),
    "unknown": ("unknown", "▛", "u", "#cf3a3a"),
}
# fmt: on


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar: its name and how it is drawn.

    Args:
        field: name of the part's field in the shares.
        glyph, ascii_glyph: the character that fills the part in the terminal; distinct without colour.
        style: its colour in the terminal.
        fill: its colour on a page: the name of a colour of the page, or a colour.
        alone: name of the part on a machine without a device; "" if the name is the same.
    """

    field: str
    label: str
    glyph: str
    ascii_glyph: str
    style: str
    fill: str = ""
    alone: str = ""

    def of(self, shares: object) -> float:
        share: float = getattr(shares, self.field)
        return share

    def named(self, has_device: bool) -> str:
        return self.label if has_device else self.alone or self.label


OF_A_STEP = (
    Part("device", "device works", "█", "#", "green", "device", "operators"),
    Part("communication", "communication, exposed", "▒", "%", "magenta", "communication", "communication"),
    Part("transfer", "transfer, exposed", "▓", "=", "yellow", "transfer", "transfer"),
    Part("input", "waits for input", "░", "i", "bold red", "input"),
    Part("host", "waits for the host", "▚", "h", "bold red", "host", "Python between operators"),
    Part("other", "other", "·", ".", "bold blue", "other"),
)
OF_A_WINDOW = (
    Part("compute", "compute", "█", "#", "green", "device"),
    Part("exposed_copy", "copy, exposed", "▓", "=", "yellow", "transfer"),
    Part("exposed_communication", "communication, exposed", "▒", "%", "magenta", "communication"),
    Part("idle_host", "idle: host", "▚", "h", "bold red", "host"),
    Part("idle_loader", "idle: loader", "░", "l", "bold red", "input"),
    Part("idle_sync", "idle: sync", "▌", "s", "bold red", "sync"),
    Part("idle_kernel", "idle: kernel", "▂", "k", "bold blue", "kernel"),
    Part("idle_other", "idle: other", "·", ".", "bold blue", "other"),
)
OF_A_RUN: dict[RunPart, Part] = {
    "start": Part("start", PARTS["start"], "▓", "=", "yellow", "transfer"),
    "steps": Part("steps", PARTS["steps"], "█", "#", "green", "device"),
    "between": Part("between", PARTS["between"], "▚", "h", "magenta", "communication"),
    "end": Part("end", PARTS["end"], "▂", "k", "bold blue", "kernel"),
    "unexplained": Part("unexplained", PARTS["unexplained"], "·", ".", "bold blue", "other"),
}
"""The parts of a whole run, in order of time."""
OF_MEMORY = {
    name: Part(name, label, glyph, letter, colour, colour)
    for name, (label, glyph, letter, colour) in _TERMS.items()
}
"""Name, characters and colour of each memory term."""
START = {
    state: Part(state, label, glyph, letter, style, fill)
    for state, label, glyph, letter, style, fill in (
        ("cold", "caches cold", "▒", "c", "cyan", "kernel"),
        ("warm", "caches warm", "█", "#", "green", "device"),
        ("off", "caches off", "·", ".", "blue", "other"),
    )
}
"""A start, by the state of its caches."""


def columns(sizes: Sequence[float], width: int) -> list[int]:
    """Return the terminal columns of each part, by largest remainders.

    They sum to `width`, or to 0 if all sizes are 0.
    """
    sizes = [max(0.0, size) for size in sizes]
    total = sum(sizes)
    if not total:
        return [0] * len(sizes)
    exact = [width * size / total for size in sizes]
    cells = [int(cell) for cell in exact]
    by_remainder = sorted(range(len(cells)), key=lambda at: cells[at] - exact[at])
    for at in by_remainder[: width - sum(cells)]:
        cells[at] += 1
    return cells
