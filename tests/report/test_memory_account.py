"""The memory of a command in the terminal."""

from __future__ import annotations

import io
import re

import msgspec
from rich.console import Console

from dynotune import memory
from dynotune.report import on_terminal
from dynotune.report.parts import OF_MEMORY
from dynotune.schema.diagnosis import Finding, MemoryAccount
from dynotune.schema.facts import Unknown

from .accounts import ACCOUNT, GIB, RANK, moment


def told(account: MemoryAccount, *, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(on_terminal(account))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_terms_are_told_with_sizes_shares_and_modules_on_one_screen() -> None:
    text = told(ACCOUNT)
    line = " ".join(text.split())
    assert "training with 32 samples per step: 8.50 GiB of the process at the peak, of 80.00 GiB" in line
    assert "others hold 3.00 GiB" in line
    assert re.search(r"activations +6\.00 GiB +71% +– +Net\.layers\.0 1\.00 GiB", text)
    assert "note: modules are unknown" in text
    assert len(text.splitlines()) < 40


def test_the_bar_is_as_wide_as_it_may_be_and_shows_each_term() -> None:
    lines = told(ACCOUNT, width=60).splitlines()
    signs = {name: OF_MEMORY[name].glyph for name in ("weights", "activations", "context")}
    (bar,) = [line for line in lines if set(line.strip()) == set(signs.values())]
    assert len(bar.strip()) == 60 and len(signs) == 3
    assert all(any(line.startswith(f"{sign} ") for line in lines) for sign in signs.values()), "a legend"


def test_an_unknown_peak_says_why() -> None:
    rank = msgspec.structs.replace(RANK, peak=Unknown("the history is cut"))
    assert "The peak is not known: the history is cut" in told(msgspec.structs.replace(ACCOUNT, ranks=[rank]))


def test_memory_report_tells_the_largest_batch_with_its_margin() -> None:
    runs = {batch: moment(weights=2, activations=batch / 8, context=0.5) for batch in (8, 16)}
    capacity = memory.capacity(runs, card="GPU 0", limit_bytes=24 * GIB)
    assert not isinstance(capacity, Unknown)
    text = told(msgspec.structs.replace(ACCOUNT, capacity=capacity))
    assert f"The largest batch that fits: {capacity.largest}" in text
    assert "measured" in text
    assert "times what was run" not in text
    far = memory.capacity(runs, card="GPU 0", limit_bytes=200 * GIB)
    assert "times what was run: run it, too" in told(msgspec.structs.replace(ACCOUNT, capacity=far))
    assert "too close" in text


def test_findings_are_told_as_of_a_diagnosis() -> None:
    finding = Finding(
        id="memory-autocast", severity="low", kind="memory", claim="Activations are kept in float32.",
        share=Unknown("memory"), remedy="Use autocast.",
    )  # fmt: skip
    assert "memory-autocast" in told(msgspec.structs.replace(ACCOUNT, findings=[finding]))
