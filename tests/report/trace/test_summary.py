from __future__ import annotations

import io
import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from dynotune.report import on_terminal
from dynotune.report.blocks import Span
from dynotune.report.parts import OF_A_WINDOW, columns
from dynotune.report.trace.window import short_kernel
from dynotune.schema.facts import Unknown
from dynotune.schema.trace_summary import (
    Calls,
    Cause,
    CauseChange,
    Gap,
    Kernels,
    Operator,
    Place,
    Shares,
    TraceDifference,
    TraceSummary,
)

from ..summaries import ELEMENTWISE, device, difference, of_ranks, on_the_host, summary

NASTY = "[red]x[/red] \x1b[31m\x07\r\n[/] \u202e\u200e层层层" + "long" * 60

NUM_PARTS = len(OF_A_WINDOW)


def text_of(renderable, *, width: int = 100, **more) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **more)
    console.print(renderable)
    return console.file.getvalue()


def report(shown: TraceSummary, *, width: int = 100, top: int = 5) -> str:
    return text_of(on_terminal(shown, top=top), width=width)


def row(text: str, label: str) -> str:
    """The one line that begins with `label`, single-spaced."""
    lines = [" ".join(line.split()) for line in text.splitlines()]
    (line,) = [line for line in lines if line.startswith(label)]
    return line


def section(text: str, heading: str) -> list[str]:
    """The lines below `heading`, to the next empty one, single-spaced."""
    lines = text.splitlines()
    (start,) = [at for at, line in enumerate(lines) if line.startswith(heading)]
    below = [" ".join(line.split()) for line in lines[start + 1 :]]
    return below[: below.index("")] if "" in below else below


def test_causes_end_with_how_to_learn_more_of_one():
    assert "dynotune explain loader-bound" in report(summary())


def test_trace_report_begins_with_the_read_files_and_ends_with_the_verdict():
    lines = report(summary()).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["trace", "recorded", "window"]
    assert lines[-1].startswith("verdict ")
    text = "\n".join(lines)
    assert row(text, "trace") == "trace train.json.gz"
    assert row(text, "recorded") == "recorded by torch.profiler, NVIDIA H100 80GB HBM3"
    assert row(text, "window") == "window 142 ms, 3 steps of 47.3 ms (marked by the profiler)"
    assert row(text, "verdict") == f"verdict {summary().verdict}"


def test_steps_that_differ_show_by_how_much_and_found_ones_say_so():
    text = report(summary(step_s=[0.04, 0.05, 0.051], step_source="repetition"), width=140)
    assert row(text, "window") == (
        "window 142 ms, 3 steps of 47.3 ms (found from repetition; on the host 40 ms to 51 ms, median 50 ms)"
    )


def test_a_host_that_runs_ahead_shows_in_its_shorter_steps():
    text = report(summary(step_s=[0.04, 0.04, 0.04]))
    assert (
        row(text, "window") == "window 142 ms, 3 steps of 47.3 ms (marked by the profiler; on the host 40 ms)"
    )
    text = report(summary(window_s=0.04, num_steps=1, step_s=[0.03]))
    assert row(text, "window") == "window 40 ms, 1 step (marked by the profiler; on the host 30 ms)"


def test_the_legend_names_each_part_with_its_share_and_its_time_a_step():
    text = report(summary())
    legend = section(text, "A step, 47.3 ms, on the device")[1:]
    assert legend == [
        "█ compute 62% 29.3 ms ░ idle: loader 14% 6.63 ms",
        "▓ copy, exposed 8.0% 3.79 ms ▌ idle: sync 4.3% 2.04 ms",
        "▚ idle: host 9.6% 4.54 ms ▂ idle: kernel 2.1% 994 µs",
    ]


def test_without_steps_everything_is_of_the_window():
    text = report(summary(num_steps=None, step_source=None, step_s=[]))
    assert row(text, "window") == "window 142 ms, steps not known"
    assert "The window, 142 ms, on the device" in text
    assert section(text, "Copies, in the window")[1].startswith("HtoD, pageable 11.9 ms 11.2 ms 6 73.4 MiB")
    assert "a step:" not in text


def test_parts_of_the_bar_are_told_apart_without_colour():
    for glyphs in ([part.glyph for part in OF_A_WINDOW], [part.ascii_glyph for part in OF_A_WINDOW]):
        assert len(set(glyphs)) == len(OF_A_WINDOW)
    assert all(part.ascii_glyph.isascii() for part in OF_A_WINDOW)


def shares_of(parts: list[float]) -> Shares:
    return Shares(**{part.field: share for part, share in zip(OF_A_WINDOW, parts, strict=True)})


@given(
    st.lists(st.floats(0, 1), min_size=len(OF_A_WINDOW), max_size=len(OF_A_WINDOW)).filter(
        lambda parts: sum(parts) > 0
    ),
    st.integers(1, 200),
)
def test_the_bar_is_full_and_no_part_is_off_by_a_column(parts, width):
    cells = columns(parts, width)
    assert sum(cells) == width
    for part, drawn in zip(parts, cells, strict=True):
        assert abs(drawn - width * part / sum(parts)) < 1.0001


def test_a_window_without_any_part_draws_nothing():
    assert sum(columns([0.0] * len(OF_A_WINDOW), 80)) == 0


def test_the_longest_causes_come_first_with_time_share_id_claim_and_place():
    lines = section(report(summary()), "Time lost, a step")
    assert lines[0].startswith("6.67 ms 14% loader-bound The device waits for the next batch")
    assert "torch/utils/data/dataloader.py:733 __next__ ·" in lines
    assert [line.split()[3] for line in lines if line[:4] in ("6.67", "3.73", "2.00")] == [
        *("loader-bound", "pin-memory-off", "sync-per-step")
    ]
    assert "/home/me/project/train.py:31 step · aten::item · cudaStreamSynchronize" in lines


def test_causes_are_followed_by_what_measures_a_remedy_and_no_cause_by_nothing():
    assert "dynotune diagnose -- COMMAND" in section(report(summary()), "More on the largest cause")
    assert "dynotune " not in report(summary(causes=[]))


def test_trace_report_counts_causes_that_its_list_leaves_out():
    causes = [Cause(id=f"cause-{n}", lost_s=n * 1e-3, share=0.01, claim="It costs.") for n in range(1, 8)]
    text = report(summary(causes=causes))
    assert "cause-7" in text
    assert "cause-2" not in text
    assert "2 more: --top 7" in text
    assert "more: --top" not in report(summary(causes=causes), top=7)


def test_kernels_are_shown_by_class_with_a_readable_name():
    lines = section(report(summary()), "Kernels by class, a step")
    assert lines[1] == "matmul 56% 17.1 ms 200 85.3 µs ampere_sgemm_128x64_tn"
    assert lines[2] == "elementwise 33% 10.0 ms 800 12.5 µs vectorized_elementwise_kernel<CUDAFunctor_add>"
    about = " ".join(lines[4:])
    assert "1,210 kernels a step; 25,563 per second; mean 25.1 µs; median 6.3 µs; 1,210 launches" in about
    assert "queue 12.4 deep on average, 1,011 at most" in about
    assert "Tensor cores: 12% of the time of matrix products, convolutions and attention." in about


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (ELEMENTWISE, "vectorized_elementwise_kernel<CUDAFunctor_add>"),
        (
            (
                "void at::native::elementwise_kernel<128, 4, "
                "at::native::gpu_kernel_impl<at::native::BinaryFunctor<"
                "float, float, float, at::native::binary_internal::MulFunctor<float> > "
                ">(at::TensorIteratorBase&)>(int)"
            ),
            "elementwise_kernel<MulFunctor>",
        ),
        (
            (
                "void at::native::elementwise_kernel<128, 2, at::native::direct_copy_kernel_cuda("
                "at::TensorIteratorBase&)::{lambda()#2}::operator()() const>(int)"
            ),
            "elementwise_kernel<direct_copy_kernel_cuda>",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1>(Params)",
            "cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align1",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        ("void (anonymous namespace)::softmax_warp_forward<float, 8>(float*)", "softmax_warp_forward"),
        ("<<<>>>", "<<<>>>"),
        ("", ""),
    ],
)
def test_a_kernel_is_called_by_its_own_name(name, short):
    assert short_kernel(name) == Span(short, "dim")


def test_trace_report_shows_no_zero_when_facts_of_kernels_are_unknown():
    known_little = Kernels(
        rank=None,
        num=4,
        total_s=1e-3,
        mean_s=None,
        median_s=None,
        per_s=40.0,
        per_step=None,
        num_launches=None,
        in_graphs=None,
        mean_queue_depth=None,
        max_queue_depth=None,
        tensor_core_share=None,
        classes=[],
    )
    text = report(summary(kernels=[known_little]))
    assert "1.33 kernels a step; 40 per second." in text
    assert "launches" not in text
    assert "Tensor cores" not in text


def test_copies_tell_pageable_from_pinned_and_what_they_achieved():
    header, to_device, to_host = section(report(summary()), "Copies, a step")
    assert header == "kind time exposed copies bytes median achieved"
    assert to_device == "HtoD, pageable 3.97 ms 3.73 ms 2 24.5 MiB 12.2 MiB 6.47 GB/s"
    assert to_host == "DtoH 1.70 µs 1.70 µs 1 4 B 4 B 2.35 MB/s"


def test_a_copy_of_unknown_size_has_no_bandwidth():
    unknown = msgspec.structs.replace(
        summary().copies[0], num_bytes=None, bytes_per_s=None, median_bytes=None
    )
    assert section(report(summary(copies=[unknown])), "Copies")[1].endswith("2 unknown unknown")


def test_calls_that_wait_and_allocations_name_their_place():
    text = report(summary())
    assert section(text, "Calls that wait for the device, a step")[1] == (
        "10.3 ms 1 cudaStreamSynchronize /home/me/project/train.py:31 step · aten::item"
    )
    assert section(text, "Memory asked of CUDA inside steps, a step")[1] == (
        "367 µs 0.667 cudaMalloc aten::empty_strided"
    )


def test_gaps_say_when_how_long_for_what_and_what_the_host_did():
    lines = section(report(summary(), width=140), "Longest gaps")
    assert lines[1].startswith("6.70 ms 40.3 ms loader torch/utils/data/dataloader.py:733 __next__")
    assert lines[2].startswith("900 µs 85.1 ms sync /home/me/project/train.py:31 step")


def test_a_long_path_keeps_its_end():
    far = Place("/a/very/long/way/from/the/root/of/the/file/system/to/project/src/train.py(31): step")
    text = report(
        summary(gaps=[Gap(rank=None, device=0, start_s=0, duration_s=1e-3, cause="host", where=far)])
    )
    assert "…/project/src/train.py:31 step" in text


def test_a_table_without_rows_is_not_shown():
    text = report(on_the_host())
    for heading in (
        "Devices",
        "Time lost",
        "Kernels",
        "Copies",
        "Calls that wait",
        "Memory",
        "Ranks",
        "idle",
    ):
        assert heading not in text


def test_a_trace_of_the_cpu_shows_its_operators():
    text = report(on_the_host())
    assert row(text, "recorded") == "recorded by torch.profiler, no GPU"
    assert section(text, "Operators on the host, in the window")[1] == (
        "13.2 ms 9.3% 60 aten::convolution_backward"
    )
    assert row(text, "devices") == "devices the trace holds no device activity"


def test_trace_names_a_viewer_when_a_file_is_one_that_it_opens():
    assert "viewer https://ui.perfetto.dev" in " ".join(report(summary()).split())
    of_nsys = report(summary(files=["report.sqlite"]))
    assert "perfetto" not in of_nsys


def test_notes_and_what_is_unknown_stand_before_the_next_commands_with_reasons():
    lines = [" ".join(line.split()) for line in report(summary()).strip().splitlines()]
    at = lines.index("places stacks were not recorded (with_stack=True)")
    assert "note: Cut short: everything up to event 40,312 counts." in lines[at - 4 : at]
    assert lines[at + 2] == "More on the largest cause, and what helps:"


def test_several_ranks_are_shown_side_by_side():
    text = report(of_ranks(2))
    assert row(text, "recorded") == "recorded by torch.profiler, 2 ranks, 2 × NVIDIA H100 80GB HBM3"
    first, second = section(text, "Devices")[1:]
    assert first.startswith("0 0 142 ms █")
    assert first.endswith("70% 59% 8.7% 2.8%")
    assert "▒" in second
    assert section(text, "Ranks")[2:] == [
        "1 47.3 ms 11.0 ms 0 µs −15 µs the others wait for it",
        "The busiest rank computes 1.12× as long as the idlest. The ranks' clocks were aligned by their",
        "common collectives.",
    ]
    assert section(
        text, "Own time by phase, in a step of median length, without waits and communication"
    ) == [
        "rank input upload forward backward optimizer other",
        "0 0 µs 1.00 ms 2.00 ms 3.00 ms 4.00 ms 5.00 ms",
        "1 1.00 ms 2.00 ms 3.00 ms 4.00 ms 5.00 ms 6.00 ms",
    ]
    assert section(text, "Communication, a step")[1] == "0 10.0 ms 1.33 ms 3.33 ms 4"
    assert section(text, "Copies, a step, mean of 2 ranks")[1].startswith(
        "HtoD, pageable 3.97 ms 3.73 ms 2 24.5 MiB"
    )
    assert section(text, "Kernels by rank")[2] == "1 1,210 25,563 25.1 µs 1,210 12.4 12%"


def test_of_many_ranks_the_idlest_devices_and_the_straggler_are_shown():
    many = of_ranks(12)
    devices = [device(rank, idle_s=rank * 1e-3) for rank in range(12)]
    text = report(msgspec.structs.replace(many, devices=devices))
    assert [line.split()[0] for line in section(text, "Devices")[1:]] == [
        *("11", "10", "9", "8", "7", "6", "5", "4"),
        "4",
    ]
    assert "4 more: --top 12" in text
    assert section(text, "Ranks")[1].endswith("the others wait for it")
    assert "and 4 more" in text


def nasty() -> TraceSummary:
    """A summary in which whatever comes from the file is meant to harm."""
    place = Place(NASTY, NASTY, NASTY)
    return of_ranks(
        2,
        files=[NASTY],
        recorder=NASTY,
        verdict=NASTY,
        causes=[Cause(id=NASTY, lost_s=1.0, share=0.5, claim=NASTY, where=place, evidence=[NASTY])],
        devices=[device(0, name=NASTY), device(1, name=NASTY)],
        gaps=[Gap(rank=0, device=0, start_s=0.0, duration_s=0.1, cause="host", where=place)],
        syncs=[Calls(rank=0, call=NASTY, num=1, total_s=0.1, where=place)],
        allocations=[Calls(rank=0, call=NASTY, num=1, total_s=0.1, where=Place(f"{NASTY}(3): {NASTY}"))],
        operators=[Operator(name=NASTY, num=1, self_s=0.1)],
        unknown={NASTY: Unknown(NASTY)},
        notes=[NASTY],
    )


def nasty_difference() -> TraceDifference:
    change = CauseChange(id=NASTY, before_s=0.1, after_s=0.2, where=Place(NASTY, NASTY, NASTY))
    return TraceDifference(
        before=nasty(),
        after=summary(),
        per="step",
        before_s=0.1,
        after_s=0.2,
        changes=[change],
        verdict=NASTY,
    )


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "made", [summary, lambda: of_ranks(12), on_the_host, nasty], ids=["one", "many", "cpu", "bad"]
)
def test_no_line_is_wider_than_the_terminal_and_only_kernels_are_cut(made, width):
    lines = report(made(), width=width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    for before, line in itertools.pairwise(["", *lines]):
        cut = "…" in line.replace("…/", "")
        # The long text may be folded within its last word.
        is_long = "long" in before.strip()[-3:] + line.strip()
        assert not cut or is_long or line.startswith(("matmul", "elementwise", "optimizer"))


def test_the_text_of_a_stranger_is_printed_as_it_is_and_steers_nothing():
    for text in (report(nasty(), width=2000), text_of(on_terminal(nasty_difference()), width=2000)):
        assert set(filter(lambda c: not c.isprintable(), text)) <= {"\n"}
        assert "[red]x[/red] \\x1b[31m\\x07\\r\\n[/] \\u202e" in text


def test_colour_is_left_out_where_it_is_not_wanted(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    text = text_of(on_terminal(summary()), force_terminal=True, color_system="truecolor")
    assert "\x1b[1m" in text
    assert "\x1b[3" not in text
    assert "█" * 30 in text


def test_a_terminal_without_blocks_gets_a_bar_of_letters():
    file = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="replace")
    Console(file=file, width=80, highlight=False).print(on_terminal(summary()))
    file.seek(0)
    text = file.read()
    assert "#" * 50 + "======hhhhhhhh" in text
    assert "= copy, exposed" in " ".join(text.split())


def test_a_difference_begins_with_both_traces_and_the_verdict():
    text = text_of(on_terminal(difference()))
    assert row(text, "before train") == "before train.json.gz"
    assert row(text, "after after") == "after after.json.gz"
    assert row(text, "verdict") == "verdict A step took 47.3 ms before and 39 ms after."


def test_both_steps_are_drawn_on_one_scale():
    text = text_of(on_terminal(difference()))
    before, after = (len(line.split()[-1]) for line in section(text, "A step, on the slowest device"))
    assert after / before == pytest.approx(0.039 / 0.0473, abs=0.02)


def test_each_part_has_its_change_and_they_sum_to_the_step():
    text = text_of(on_terminal(difference()))
    assert row(text, "░ idle: loader") == "░ idle: loader 6.62 ms 0 µs −6.62 ms"
    assert row(text, "together") == "together 47.3 ms 39.0 ms −8.30 ms"
    assert "idle: other" not in text


def test_a_cause_that_a_trace_does_not_show_is_not_called_zero():
    lines = section(text_of(on_terminal(difference())), "Time lost, a step")
    assert lines[1] == "6.60 ms – −6.60 ms loader-bound"
    assert lines[2] == "2.00 ms 2.10 ms +100 µs sync-per-step"
    assert lines[3] == "/home/me/project/train.py:31 step · aten::item · cudaStreamSynchronize"


def test_different_devices_are_pointed_out():
    after = summary(devices=[device(name="Tesla V100")])
    text = text_of(on_terminal(difference(after=after)), width=200)
    assert "note: Recorded on different devices: NVIDIA H100 80GB HBM3 before, Tesla V100 after." in text
    assert "different devices" not in text_of(on_terminal(difference()))


def test_a_difference_without_devices_shows_what_it_has():
    bare = difference(
        before=on_the_host(), after=on_the_host(), per="window", before_s=None, after_s=None, changes=[]
    )
    text = text_of(on_terminal(bare))
    assert "verdict" in text
    assert "A step" not in text.split("verdict")[0]


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("made", [difference, nasty_difference])
def test_no_line_of_a_difference_is_wider_than_the_terminal(made, width):
    text = text_of(on_terminal(made()), width=width)
    assert max(cell_len(line) for line in text.splitlines()) <= width
