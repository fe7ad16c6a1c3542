from __future__ import annotations

import io
import re
import shlex
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from dynotune.report import loudness, on_terminal
from dynotune.report.parts import OF_A_STEP, columns
from dynotune.schema.attribution import Shares
from dynotune.schema.diagnosis import (
    Delayed,
    Diagnosis,
    Finding,
    Forecast,
    NotKnown,
    ReadFromTrace,
    UpperBound,
)
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import Setting
from dynotune.schema.timing import SlowStep, Timing
from dynotune.schema.trace_summary import Place

NASTY = "[red]x[/red] \x1b[31m\x07\r\n[/] \u202e\u200e层层层" + "long" * 60
TIMING = Timing(
    num_steps=120,
    window_s=2.76,
    step_s=0.023,
    median_step_s=0.022,
    p99_step_s=0.05,
    longest_step_s=0.09,
    wait_s=0.014,
)
WORKERS = Finding(
    id="num-workers-zero",
    severity="high",
    claim="Batches are made in the main process.",
    share=0.61,
    evidence=["batches drawn: 1 a step, 14 ms each"],
    where=Place("/home/me/train.py(31): main"),
    candidates=[Setting("loader.num_workers", 4), Setting("loader.persistent_workers", True)],
    also=["loader-bound"],
)


def diagnosis(**changes: Any) -> Diagnosis:
    fields: dict[str, Any] = {
        "command": ["python", "train.py", "--data", "my photos"],
        "verdict": "A step takes 23 ms; 61% of it the device waits for the data loader (train.py:31).",
        "bottleneck": "input",
        "shares": Shares(input=0.61, transfer=0.02, host=0.05, device=0.3, communication=0.0, other=0.02),
        "findings": [WORKERS],
        "unknown": [],
        "steps": TIMING,
        "busy_share": 0.32,
    }
    return Diagnosis(**(fields | changes))


def text_of(shown: Diagnosis, *, width: int = 100, **more: Any) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, **more)
    console.print(on_terminal(shown))
    return console.file.getvalue()


def single_spaced(text: str) -> str:
    return " ".join(text.split())


def test_diagnosis_begins_with_the_command_and_the_bottleneck_and_ends_with_the_verdict():
    lines = text_of(diagnosis()).splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["command", "steps", "bottleneck"]
    assert "python train.py --data 'my photos'" in lines[0]
    assert "120 of 23 ms, median 22 ms, slowest hundredth from 50 ms" in lines[1]
    assert lines[-1].split() == ["verdict", *diagnosis().verdict.split()]


def test_parts_of_the_bar_are_told_apart_without_colour():
    for glyphs in ([part.glyph for part in OF_A_STEP], [part.ascii_glyph for part in OF_A_STEP]):
        assert len(set(glyphs)) == len(OF_A_STEP)
    assert {part.field for part in OF_A_STEP} == set(Shares.__struct_fields__)


@given(
    st.lists(st.floats(0, 1), min_size=6, max_size=6).filter(lambda parts: sum(parts) > 0),
    st.integers(1, 200),
)
def test_the_bar_is_full_and_no_part_is_off_by_a_column(parts, width):
    shares = Shares(**{p.field: share / sum(parts) for p, share in zip(OF_A_STEP, parts, strict=True)})
    cells = columns([part.of(shares) for part in OF_A_STEP], width)
    assert sum(cells) == width
    for part, drawn in zip(OF_A_STEP, cells, strict=True):
        assert abs(drawn - width * part.of(shares)) < 1.0001


def test_the_legend_names_each_part_with_its_share_and_time():
    text = single_spaced(text_of(diagnosis()))
    assert "A step, 23 ms, the device busy for 32%" in text
    assert "░ waits for input 61% 14.0 ms" in text
    assert "communication" not in text


def test_without_a_device_operators_and_python_are_named():
    shown = diagnosis(busy_share=None)
    text = single_spaced(text_of(shown))
    assert "█ operators 30%" in text
    assert "▚ Python between operators 5.0%" in text


def test_a_finding_says_what_it_costs_where_and_what_to_paste():
    text = text_of(diagnosis(), width=140)
    flat = single_spaced(text)
    assert "high num-workers-zero up to 61% of a step Batches are made in the main process." in flat
    assert "/home/me/train.py:31 main" in flat
    assert "explains loader-bound" in flat
    assert "  dynotune compare loader.num_workers=4 loader.persistent_workers=true -- python" in text


def test_pasted_line_gives_a_knob_one_value():
    workers = [Setting("loader.num_workers", num) for num in (5, 6)]
    found = msgspec.structs.replace(
        WORKERS, candidates=[*workers, Setting("loader.persistent_workers", True)]
    )
    text = text_of(diagnosis(findings=[found]), width=140)
    assert "dynotune compare loader.num_workers=5 loader.persistent_workers=true -- python" in text


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_pasted_line_says_to_the_shell_what_was_run(width):
    command = [
        "python",
        "a b.py",
        "$(rm -rf /)",
        "'",
        "--x=*",
        *(f"--option-{index}=1" for index in range(20)),
    ]
    found = msgspec.structs.replace(
        WORKERS, candidates=[Setting("env.A", "1 2"), Setting("loader.num_workers", 4)]
    )
    text = text_of(diagnosis(command=command, findings=[found], bottleneck="none"), width=width)
    pasted = text[text.index("dynotune compare") :].partition("\n\n")[0]
    assert shlex.split(pasted.replace(" \\\n", " ")) == [
        "dynotune",
        "compare",
        "env.A=1 2",
        "loader.num_workers=4",
        "--",
        *command,
    ]
    assert max(map(len, text.splitlines())) <= width


def test_lines_for_an_administrator_and_remedies_are_shown_as_they_are():
    found = msgspec.structs.replace(
        WORKERS, candidates=[], commands=["echo 1 > /proc/sys/x"], remedy="Change it."
    )
    text = text_of(diagnosis(findings=[found]))
    assert "  echo 1 > /proc/sys/x" in text
    assert "Change it." in text


@pytest.mark.parametrize(
    ("kind", "share", "said"),
    [
        ("correctness", Unknown("x"), "correctness"),
        ("speed", Unknown("x"), "how much is not known"),
        ("start", Unknown("x"), "time to the first step"),
        ("memory", 0.0, "memory"),
        ("speed", 0.043, "up to 4.3% of a step"),
    ],
)
def test_finding_says_its_cost_in_words(kind, share, said):
    found = msgspec.structs.replace(WORKERS, kind=kind, share=share)
    assert re.search(rf"num-workers-zero  {said}\s*$", text_of(diagnosis(findings=[found])), re.MULTILINE)


def test_findings_of_jitter_follow_the_others_when_a_diagnosis_has_both():
    uneven = msgspec.structs.replace(WORKERS, id="gc-jitter", kind="jitter", share=0.02)
    text = text_of(diagnosis(findings=[uneven, WORKERS]))
    assert text.index("num-workers-zero") < text.index("Jitter") < text.index("gc-jitter")
    slow = msgspec.structs.replace(TIMING, slow=[SlowStep(index=3, step_s=0.09, wait_s=0.0)])
    assert "The slowest step took 90 ms, a typical step 22 ms" in single_spaced(
        text_of(diagnosis(steps=slow))
    )


def test_unknown_rules_are_folded_by_their_reason_and_cut_at_ten():
    unknown = [NotKnown(f"rule-{index}", "the trace", "nothing was recorded") for index in range(5)]
    unknown += [NotKnown(f"other-{index}", f"fact.{index}", "no NVML here") for index in range(12)]
    text = single_spaced(text_of(diagnosis(unknown=unknown), width=140))
    assert (
        "Not known, 17 rules could not judge the trace: nothing was recorded (rule-0, rule-1, rule-2 and 2 "
        "more)"
    ) in text
    assert text.count("no NVML here") == 9
    assert "3 more reasons: --verbose shows all" in text


def test_a_verbose_report_leaves_no_reason_out(monkeypatch):
    monkeypatch.setitem(loudness.said, "verbose", True)
    unknown = [NotKnown(f"other-{index}", f"fact.{index}", "no NVML here") for index in range(12)]
    text = single_spaced(text_of(diagnosis(unknown=unknown), width=140))
    assert text.count("no NVML here") == 12 and "more reasons" not in text


def test_ceilings_are_shown_where_they_were_asked_for():
    ceilings = [
        UpperBound(part="loader", step_s=0.02, num_steps=50, samples_per_s=1600, page_cache="warm"),
        UpperBound(part="step", step_s=0.005, num_steps=50),
    ]
    text = single_spaced(text_of(diagnosis(upper_bounds=ceilings)))
    assert "the loader alone 20 ms 1,600 samples/s page cache warm" in text
    assert "one batch, again and again 5 ms" in text
    assert "Upper bounds" not in text_of(diagnosis())


def test_without_shares_or_findings_the_rest_is_shown():
    shown = diagnosis(shares=Unknown("x"), steps=Unknown("y"), findings=[], notes=["A note."])
    text = single_spaced(text_of(shown))
    assert "no rule found anything" in text
    assert "note: A note." in text


@pytest.mark.parametrize("width", [40, 80, 120])
def test_diagnosis_of_hostile_texts_cannot_harm_the_terminal_and_is_no_wider_than_it(width):
    nasty = Finding(
        id="x",
        severity="low",
        claim=NASTY,
        share=0.2,
        evidence=[NASTY],
        where=Place(NASTY, NASTY, NASTY),
        remedy=NASTY,
        commands=[NASTY],
        candidates=[Setting("env.A", NASTY)],
    )
    shown = diagnosis(
        command=["python", NASTY],
        verdict=NASTY,
        findings=[nasty],
        unknown=[NotKnown("a", NASTY, NASTY)],
        notes=[NASTY],
    )
    text = text_of(shown, width=width)
    assert not set("\x1b\x07\r\u202e\u200e") & set(text)
    assert "[red]x[/red]" in "".join(text.split("\n"))
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_piped_there_is_no_colour_and_on_a_plain_terminal_only_ascii_bars():
    assert "\x1b" not in text_of(diagnosis())
    console = Console(
        file=io.TextIOWrapper(raw := io.BytesIO(), encoding="ascii", errors="replace"), width=100
    )
    console.print(on_terminal(diagnosis()))
    console.file.flush()
    assert "iiiiiiii" in raw.getvalue().decode("ascii")
    assert "########" in raw.getvalue().decode("ascii")


def of_parts(loader_s, step_s, both_s):
    parts = zip(("loader", "step", "both"), (loader_s, step_s, both_s), strict=True)
    return [UpperBound(part=part, step_s=took_s, num_steps=9) for part, took_s in parts]


@pytest.mark.parametrize(
    ("took_s", "told"),
    [
        ((0.02, 0.005, 0.025), (
            "If the loader worked beside the steps as fast as it does alone, this would gain 20%"
        )),
        ((0.004, 0.02, 0.024), (
            "gain more than 17% of a step. The loader makes batches faster than the steps use them"
        )),
        ((0.02, 0.005, 0.02), "gain more than 75% of a step. The loader sets the pace"),
        ((0.004, 0.02, 0.02), "no setting of the loader can gain anything"),
        ((0.095, 0.019, 0.135), (
            "The loader and the steps slow each other by taking turns: a step takes 21 ms more than "
            "both alone."
        )),
    ],
)  # fmt: skip
def test_ceilings_bound_what_a_loader_can_gain(took_s, told):
    assert told in single_spaced(text_of(diagnosis(upper_bounds=of_parts(*took_s)), width=200))


def test_a_loader_and_a_step_that_take_as_long_as_alone_are_not_called_slower():
    assert "Taking turns" not in text_of(diagnosis(upper_bounds=of_parts(0.095, 0.019, 0.116)))


def test_ceilings_that_are_not_known_say_why():
    unknown = Unknown(f"no loader {NASTY}")
    text = text_of(diagnosis(upper_bounds=unknown))
    assert "Upper bounds: unknown, no loader" in text
    assert "\x1b" not in text


def test_forecasts_name_the_setting_and_what_a_step_takes_at_least():
    row = Forecast(change="decoding by opencv", setting="decode.backend=opencv", loader_s=0.01, step_s=0.02,
                   least_step_s=0.015, note="pixels may differ")  # fmt: skip
    text = single_spaced(text_of(diagnosis(forecasts=[row]), width=200))
    assert "decoding by opencv 10 ms 20 ms 15 ms decode.backend=opencv; pixels may differ" in text
    assert "Forecasts of the loader: unknown, no loader" in text_of(diagnosis(forecasts=Unknown("no loader")))


@pytest.mark.parametrize("num_findings", [1, 3, 12])
def test_on_a_terminal_an_answer_fits_a_screen_verdict_last_and_verbose_gives_the_rest(
    num_findings, monkeypatch
):
    many = [
        msgspec.structs.replace(WORKERS, id=f"finding-{at}", remedy="Ask for workers.")
        for at in range(num_findings)
    ]
    unknown = [NotKnown(f"other-{index}", f"fact.{index}", "no NVML here") for index in range(12)]
    uneven = msgspec.structs.replace(TIMING, slow=[SlowStep(index=7, step_s=0.09, wait_s=0.0)])
    shown = diagnosis(findings=many, unknown=unknown, notes=["Others used cores."] * 3, steps=uneven)
    full = text_of(shown, width=80)
    monkeypatch.setattr(sys, "stdout", Terminal())
    lines = text_of(shown, width=80).splitlines()
    assert len(lines) <= 24
    assert lines[-2].startswith("verdict ") and lines[-1].split() == ["(train.py:31)."]
    assert "--verbose" in " ".join(lines)
    assert "Ask for workers." in " ".join(lines)
    assert num_findings <= 3 or "and 9 more" in " ".join(lines)
    monkeypatch.setitem(loudness.said, "verbose", True)
    assert len(text_of(shown, width=80).splitlines()) >= len(full.splitlines())


def test_a_screen_shows_the_command_of_the_first_finding_that_has_one(monkeypatch):
    decoding = msgspec.structs.replace(
        WORKERS, id="decode-bound", candidates=[], remedy="Store the data decoded."
    )
    workers = msgspec.structs.replace(WORKERS, remedy="Let workers make batches.", where=Place())
    others = [msgspec.structs.replace(workers, id=f"finding-{at}", remedy="Later.") for at in range(5)]
    monkeypatch.setattr(sys, "stdout", Terminal())
    shown = diagnosis(findings=[decoding, workers, *others], notes=["Others used cores."])
    lines = text_of(shown, width=80).splitlines()
    flat = single_spaced(" ".join(lines))
    assert flat.index("Store the data decoded.") < flat.index("Let workers make batches.")
    assert flat.count("dynotune compare loader.num_workers=4") == 1 and "Later." not in flat
    assert len(lines) <= 24


class Terminal(io.StringIO):
    def isatty(self):
        return True


REFUTED = msgspec.structs.replace(
    WORKERS, id="host-bound", share=0.3, tested=Delayed(part="host", slope=0.02, ci=(-0.08, 0.12), cost=0.006)
)


def test_diagnosis_says_how_loud_findings_were_tested():
    tested = Delayed(part="loader", slope=1.02, ci=(0.95, 1.1), cost=0.61)
    told = " ".join(text_of(diagnosis(findings=[msgspec.structs.replace(WORKERS, tested=tested)])).split())
    assert "up to 61% of a step, tested" in told
    assert (
        "a step became longer by 102% of a delay of the loader (95 to 110%), so it costs 61% of a step"
        in told
    )
    told = text_of(diagnosis(findings=[msgspec.structs.replace(WORKERS, tested=ReadFromTrace())]))
    assert "up to 61% of a step, read from the trace" in told


def test_diagnosis_calls_no_finding_tested_when_the_delay_was_of_its_whole_part():
    tested = Delayed(part="host", slope=0.89, ci=(0.68, 1.1), cost=0.1, tests_cause=False)
    told = " ".join(text_of(diagnosis(findings=[msgspec.structs.replace(WORKERS, tested=tested)])).split())
    assert "of a step, read from the trace" in told
    assert "Not tested by itself: a step became longer by 89% of a delay of the host (68 to 110%)" in told
    assert "so it costs" not in told


def test_diagnosis_lists_refuted_findings_when_it_is_verbose(monkeypatch):
    found = diagnosis(refuted=[REFUTED])
    assert "host-bound" not in text_of(found)
    monkeypatch.setitem(loudness.said, "verbose", True)
    told = " ".join(text_of(found).split())
    assert "Refuted by delays" in told
    assert "host-bound" in told
    assert "2% of a delay of the host (-8 to 12%)" in told
