from __future__ import annotations

import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from dynotune.report.memory.snapshot import snapshot_report
from dynotune.schema.facts import Unknown
from dynotune.schema.memory_snapshot import DeviceMemory, History, Holder, MemoryCause, MemorySnapshot, Peak
from dynotune.schema.trace_summary import Place

HOLDERS = [
    Holder(where=Place("/home/me/project/model.py(31): forward"), requested_bytes=3 * 2**30, num_blocks=120),
    Holder(where=Place(), requested_bytes=2**20, num_blocks=3),
]


def device(**changes: Any) -> DeviceMemory:
    fields: dict[str, Any] = {
        "device": 0,
        "reserved_bytes": 4 * 2**30,
        "allocated_bytes": 3 * 2**30,
        "active_bytes": 3 * 2**30,
        "requested_bytes": None,
        "inactive_split_bytes": 2**30,
        "fragmentation": 0.25,
        "num_segments": 12,
        "largest_free_bytes": 300 * 2**20,
        "expandable": False,
        "holders": HOLDERS,
        "history": History(
            num_events=1234,
            duration_s=2.5,
            peak=Peak(requested_bytes=7 * 2**29, event=600, at_s=1.2, start_bytes=0, holders=HOLDERS[:1]),
            peak_reserved_bytes=4 * 2**30,
            num_segment_allocs=14,
            num_segment_frees=2,
            num_late_segment_allocs=0,
            num_flushes=None,
            num_empty_caches=0,
            num_ooms=1,
        ),
    }
    return DeviceMemory(**(fields | changes))


def snapshot(**changes: Any) -> MemorySnapshot:
    fields: dict[str, Any] = {
        "file": "snapshot.pickle",
        "devices": [device()],
        "settings": {"expandable_segments": "False"},
        "causes": [
            MemoryCause(
                id="fragmentation",
                device=0,
                num_bytes=2**30,
                share=0.25,
                claim="25% of the reserved memory lies free between blocks in use",
                evidence=["largest free block 314,572,800 bytes"],
            )
        ],
        "notes": ["some settings are not shown"],
    }
    return MemorySnapshot(**(fields | changes))


def lines_of(shown: MemorySnapshot, *, width: int = 100, top: int = 5) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(snapshot_report(shown, top=top))
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_it_begins_with_what_each_device_holds():
    lines = lines_of(snapshot())
    assert lines[0] == "snapshot snapshot.pickle"
    assert lines[1] == "device 0 4.00 GiB reserved, 3.00 GiB allocated, 25% fragmented"


def test_waste_comes_with_its_size_and_its_figures():
    lines = lines_of(snapshot())
    at = lines.index("Wasted or churned")
    assert lines[at + 1].startswith("1.00 GiB 25% device 0 fragmentation 25% of the reserved memory")
    assert lines[at + 2 : at + 4].count("largest free block 314,572,800 bytes") == 1


def test_holders_are_listed_now_and_at_the_peak():
    lines = lines_of(snapshot())
    assert "3.00 GiB 120 /home/me/project/model.py:31 forward" in lines[lines.index("Held on device 0") :]
    assert "1 MiB 3 place not recorded" in lines
    assert "Held at the peak on device 0, 3.50 GiB" in lines
    assert "peak 3.50 GiB asked for after 1.2 s" in lines


def test_what_is_not_known_is_said_to_be_unknown_and_is_never_zero():
    lines = lines_of(snapshot())
    assert "flushes of the cache unknown" in lines
    assert not [line for line in lines if line.startswith("asked for")]
    lines = lines_of(snapshot(devices=[device(history=Unknown("it was not recorded"), fragmentation=None)]))
    assert "history not known: it was not recorded" in lines
    assert "fragmented" not in lines[1]


def test_a_list_that_is_longer_says_so():
    assert "1 more: --top 2" in lines_of(snapshot(), top=1)


@pytest.mark.parametrize("width", [60, 80])
def test_names_of_strangers_steer_nothing_and_no_line_is_too_wide(width):
    nasty = "[red]\x1b[31m\n" + "x" * 300
    holders = [Holder(where=Place(f"{nasty}(3): {nasty}"), requested_bytes=5, num_blocks=1)]
    shown = snapshot(
        file=nasty,
        devices=[device(holders=holders)],
        settings={nasty: nasty},
        causes=[MemoryCause(id=nasty, device=0, claim=nasty, where=Place(nasty), evidence=[nasty])],
        notes=[nasty],
    )
    lines = lines_of(shown, width=width)
    assert max(map(cell_len, lines)) <= width
    assert all(line.isprintable() for line in lines)
    assert any("[red]\\x1b[31m\\n" in line for line in lines)
