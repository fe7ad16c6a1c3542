"""The state of a run: its tiles, what happened, the line to type, and its tables."""

from __future__ import annotations

from typing import Any

from dynotune.report import as_text, live_run, shown
from dynotune.report.blocks import On, Tile, Tiles
from dynotune.report.page.html import live_parts
from dynotune.report.page.markdown import markdown
from dynotune.schema.facts import Unknown
from dynotune.schema.watch import Alert, Epoch, GpuView, Mark, ProcessView, StepTimes, View


def gpu(**more: Any) -> GpuView:
    names = [name for name in GpuView.__struct_fields__ if name not in ("clock_limits", "others")]
    return GpuView(**{**dict.fromkeys(names, 1), **more})


def view(**more: Any) -> View:
    steps = StepTimes(
        rank="0", pid=7, num_steps=120, median_s=0.05, p99_s=0.09, samples_per_s=640.0, input_share=0.4
    )
    known: dict[str, Any] = {
        "command": ["python", "train.py", "two words"],
        "at_s": 200.0,
        "clock_s": 1e9,
        "begun_s": 75.0,
        "state": "running",
        "headline": "Waits for input",
        "verdict": "Input-bound: the loader lets each step wait 40% of its time.",
        "cause": "input",
        "since_step": None,
        "exit_code": None,
        "num_steps": 120,
        "steps_per_s": 20.0,
        "epoch": Epoch(number=3, step=20, num_steps=50),
        "steps_s": [steps],
        "samples_per_s": 640.0,
        "gpus": Unknown("no NVIDIA driver"),
        "processes": [],
        "num_processes": 3,
        "cores": 0.5,
        "others": 1.25,
        "num_cpus": 2,
        "memory_bytes": 3 << 30,
        "memory_left_bytes": 5 << 30,
        "recent": {"steps_per_s": [20.0, None, 10.0], "wait_share": [0.4, 0.4, 0.4]},
        "marks": [],
        "alerts": [],
        "notes": [],
    }
    return View(**{**known, **more})


def tiles_of(state: View) -> dict[str, Tile]:
    (tiles,) = [block for block in live_run.layout(state).head if isinstance(block, Tiles)]
    return {tile.name: tile for tile in tiles.tiles}


def test_layout_has_a_tile_for_each_figure_that_is_known():
    tiles = tiles_of(view())
    assert [(name, tile.figure) for name, tile in tiles.items()] == [
        ("steps", "20/s"),
        ("samples", "640/s"),
        ("epoch", "3"),
        ("wait for input", "40%"),
        ("CPU, this run", "0.5 of 2"),
        ("CPU, others", "1.2 of 2"),
        ("host memory", "3.00 GiB"),
    ]
    assert tiles["steps"].curve == [20.0, None, 10.0]
    assert (tiles["epoch"].share, tiles["epoch"].detail) == (0.4, "step 20 of about 50")
    assert tiles["wait for input"].tone == tiles["CPU, others"].tone == "wary"


def test_layout_has_tiles_of_the_gpu_when_there_is_one():
    tiles = tiles_of(
        view(gpus=[gpu(memory_used_bytes=38 << 30, memory_bytes=40 << 30), gpu(power_w=Unknown("?"))])
    )
    assert tiles["GPU busy"].figure == "1%"
    assert tiles["GPU busy"].detail == "2 GPUs, mean, 1 W"
    whole = tiles_of(view(gpus=[gpu(memory_used_bytes=38 << 30, memory_bytes=40 << 30)]))
    assert (whole["GPU memory"].figure, whole["GPU memory"].tone) == ("38.00 GiB", "wary")


def test_layout_tells_at_most_five_marks_in_words_and_no_epoch():
    marks = [Mark(at_s=100.0 + at, step=at, kind="pause", text=f"a pause of {at} s") for at in range(9)]
    told = live_run.told([*marks, Mark(at_s=199.0, step=99, kind="epoch", text="a new epoch")])
    assert [mark.step for mark in told] == [8, 7, 6, 5, 4]
    text = as_text(shown(live_run.layout(view(marks=marks))))
    assert "1:32 ago  step 8  a pause of 8 s" in text


def test_layout_gives_a_line_to_type_for_the_cause():
    lines = {cause: live_run.layout(view(cause=cause)).use for cause in ("input", "device", "stalled")}
    assert lines["input"][0].words == ["dynotune", "tune", "--", "python", "train.py", "'two words'"]
    assert lines["device"][0].words[:3] == ["dynotune", "diagnose", "--"]
    assert lines["stalled"][0].words == ["dynotune", "diagnose", "--pid", "7"]
    assert live_run.layout(view(command=["folder"])).use == []
    assert live_run.layout(view(num_steps=0)).use == []


def test_layout_says_alerts_before_what_happened():
    alert = Alert(id="rank-lag", whose="1", text="Rank 1 lags.", details=["rank 1, thread 1: train.py(3)"])
    mark = Mark(at_s=190.0, step=5, kind="bottleneck", text="waits for input; before: computes on the CPU")
    text = as_text(shown(live_run.layout(view(alerts=[alert], marks=[mark]))))
    assert text.index("rank-lag: Rank 1 lags.") < text.index("train.py(3)") < text.index("What happened")


def test_tables_write_values_by_the_unit_of_their_name_and_leave_out_what_no_row_says():
    rows = [gpu(memory_used_bytes=3 << 30, power_w=Unknown("not said"), clock_limits=["hw-thermal"])]
    table = live_run.table(rows)
    cells = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert cells["memory used"] == "3.00 GiB"
    assert cells["power"] == "unknown"
    assert cells["kernel running"] == "1%"
    assert cells["clock limits"] == "hw-thermal"
    assert "others" not in cells
    steps = StepTimes(
        rank="0", pid=7, num_steps=1, median_s=0.05, p99_s=0.09, samples_per_s=640.0, input_share=0.4
    )
    ranks = live_run.table([steps])
    assert (
        dict(zip([column.name for column in ranks.columns], ranks.rows[0], strict=True))["samples"] == "640/s"
    )
    assert {"PID", "NVML index", "SM clock"} <= {
        column.name for one in (ranks, table) for column in one.columns
    }
    process = ProcessView(pid=1, role="program", cores=0.5, num_threads=2, rss_bytes=1 << 20, state="running")
    assert "is worker" not in [column.name for column in live_run.table([process]).columns]


def test_layout_says_why_values_are_unknown_when_there_is_room():
    text = as_text(shown(live_run.layout(view(notes=["one record was lost"])), On.LONG))
    assert "gpus: no NVIDIA driver" in text
    assert "one record was lost" in text


def test_the_last_line_is_the_verdict_in_every_medium():
    report = live_run.layout(view())
    for medium in (On.SCREEN, On.LONG):
        assert as_text(shown(report, medium)).splitlines()[-1].startswith("verdict  Input-bound")
    assert "**Input-bound" in markdown(view())
    assert "Input-bound" in live_parts(report).header


def test_live_parts_escape_what_programs_chose():
    hostile = "<img src=x onerror=alert(1)>"
    parts = live_parts(
        live_run.layout(
            view(
                command=["python", hostile],
                verdict=hostile,
                alerts=[Alert(id="stalled", text=hostile, details=[hostile])],
                marks=[Mark(at_s=1.0, step=1, kind="pause", text=hostile)],
                notes=[hostile],
            )
        )
    )
    assert "<img" not in "".join(parts)
    assert "&lt;img" in parts.header
    assert "&lt;img" in parts.story
