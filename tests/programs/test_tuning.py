"""What the benchmark of tune chooses, keeps and counts; its programs are run elsewhere."""

import itertools
import json
import math
import sys

import pytest

from dynotune.search import asked as asked_of_tune
from lab.provenance import RESULTS
from lab.result_file import opened, read
from lab.search import problems
from lab.tuning import idle, parts, programs, tables, work
from lab.tuning.commands import asked, peers
from lab.tuning.parts import Setup, needs_no_run, run_within
from lab.tuning.rows import cell, show, summary, told

BY_NAME = {program.name: program for program in programs.PROGRAMS}
TABLE = {"loader.num_workers": (0, 1, 2), "loader.pin_memory": (False, True)}


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.result_file.describe", lambda: {"command": "as tested"})


def filled(num_blocks: int, ratio: float = 0.8):
    """A table in which two workers take `ratio` of the time, and pinning does nothing."""
    table = tables.empty(TABLE)
    for number in range(num_blocks):
        # Each block on another machine.
        pace = 1.0 + number
        block = {key: pace * (ratio if "num_workers=2" in key else 1.0) for key in table["arms"]}
        table = tables.with_block(table, block, {}, [3.0] * len(block))
    return table


# Programs


def test_words_say_how_a_program_runs():
    assert asked.asked("") == asked.Asked()
    assert asked.asked("tf32,amp=fp16,workers=3").workers == 3
    assert asked.asked("informed").amp == "bf16"
    with pytest.raises(ValueError, match="fsat"):
        asked.asked("tf32,fsat")


def test_tools_choices_are_put_in_the_words_of_asked():
    words = peers.words_of_autotune(
        {"precision": "amp_bf16", "compile": "reduce-overhead", "channels_last": True, "fused_opt": False}
    )
    how = asked.asked(words)
    assert (how.amp, how.compile, how.channels_last, how.tf32, how.fused) == (
        "bf16", "reduce-overhead", True, True, False,
    )  # fmt: skip
    plain = {"precision": "fp32_default", "compile": "off", "channels_last": False, "fused_opt": False}
    assert peers.words_of_autotune(plain) == ""
    assert all(asked.asked(words) for words in peers.SLOWAI.values())


def test_every_program_has_all_that_the_benchmark_asks_of_it():
    for program in programs.PROGRAMS:
        assert program.net in peers.STEPS
        assert set(program.cannot) <= set(parts.PEERS)
        for device in ("cpu", "cuda"):
            assert program.run_s[device] > 0
            assert program.tune_s[device] > 0
        for table in program.table.values():
            assert len(tables.arms_of(table)) <= tables.MOST_ARMS
    assert sum("cuda" in program.table for program in programs.PROGRAMS) >= 2


# What is left


def test_a_part_waits_for_what_it_needs_and_is_not_done_twice():
    gpt = BY_NAME["gpt"]
    rows = {}
    assert [kind for kind in parts.KINDS if work.left(gpt, rows, kind)] == ["tune", "autotune", "slowai"]
    rows |= {"tune": {"recipe": ["optimizer.fused=true"]}, "autotune": {"failed": "no memory"}}
    left = [kind for kind in parts.KINDS if work.left(gpt, rows, kind)]
    assert left == ["verify", "informed", "autotune", "slowai"]
    rows["autotune"] = {"chosen": "tf32"}
    assert work.left(gpt, rows, "autotune-pairs")


def test_nothing_is_run_for_what_is_known_already():
    gpt, yolo = BY_NAME["gpt"], BY_NAME["yolo-predict"]
    proved = {"tune": {"recipe": ["optimizer.fused=true"]}}
    assert "cannot" in needs_no_run("autotune", yolo, proved)
    assert needs_no_run("verify", gpt, {"tune": {"recipe": []}}) == {"outcome": "nothing to verify"}
    assert needs_no_run("verify", gpt, proved) is None
    assert needs_no_run("slowai-pairs", gpt, {**proved, "slowai": {"chosen": ""}}) == {"as": "written"}
    assert "cannot" in needs_no_run("slowai-pairs", gpt, {**proved, "slowai": {"chosen": None}})
    both = {**proved, "autotune-pairs": {"words": "tf32", "pairs": [[1, 1]]}, "slowai": {"chosen": "tf32"}}
    assert needs_no_run("slowai-pairs", gpt, both) == {"as": "autotune-pairs"}


def test_a_result_is_added_to_and_gone_on_with(tmp_path):
    out = tmp_path / "there" / "result.json"
    for number in range(2):
        with opened(out) as result:
            result.setdefault("programs", {})[f"program{number}"] = number
    assert read(out) == {"command": "as tested", "programs": {"program0": 0, "program1": 1}}


def test_nothing_begins_that_would_end_too_late(tmp_path, monkeypatch, capsys):
    def refused(*_):
        raise AssertionError("there was no time for it")

    monkeypatch.setattr(work, "do", refused)
    setup, out = Setup("cuda", tmp_path), tmp_path / "result.json"
    work.work_on(BY_NAME["gpt"], ["tune"], setup, out, lambda: 60.0)
    assert "another time" in capsys.readouterr().out
    assert not out.exists()


def test_the_plan_counts_what_is_left_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(programs.Program, "missing", lambda self: [])
    setup = Setup("cuda", tmp_path)
    gpt = [BY_NAME["gpt"]]
    whole_s = work.plan(gpt, parts.KINDS, {}, setup, tmp_path)
    rows = {"tune": {"recipe": [], "run_s": 2.0}}
    less_s = work.plan(gpt, parts.KINDS, {"programs": {"gpt": rows}}, setup, tmp_path)
    assert less_s < whole_s - gpt[0].tune_s["cuda"]
    assert "tune done" in capsys.readouterr().out


# Tables


def test_a_table_has_every_combination_once_the_baseline_first():
    arms = [one.key for one in tables.arms_of(TABLE)]
    assert arms[0] == ""
    assert len(set(arms)) == 6
    assert "loader.num_workers=2 loader.pin_memory=true" in arms
    with pytest.raises(ValueError, match="more than 12"):
        tables.arms_of({**TABLE, "optimizer.fused": (False, True), "cudnn.benchmark": (False, True)})


def test_a_choice_is_judged_by_blocks_of_one_machine_each():
    table = filled(3)
    best = tables.against_best(table, ["loader.num_workers=2"])
    assert best["speedup"] == pytest.approx(1.25)
    assert best["reached"]
    none = tables.against_best(table, [])
    assert none["share"] == pytest.approx(0.8)
    assert not none["reached"]


def test_a_choice_that_is_no_arm_of_the_table_is_kept_and_told(capsys):
    table, recipe = filled(2), ["loader.num_workers=8"]
    found = tables.against_best(table, recipe)
    assert (found["best"], found["reached"]) == (tables.against_best(table, [])["best"], False)
    assert found["chosen"] is found["speedup"] is found["share"] is None
    row = {"recipe": recipe, "wall_s": 9.0, "table_s": 36.0, **found}
    assert told("table-tune", row) == "no measured arm of the table in 25% of the table's time"
    known = {**row, **tables.against_best(table, [])}
    assert told("table-tune", known) == "80.0% of the best in 25% of the table's time"
    show([], {"tables": {"starved": row}})
    assert "chose loader.num_workers=8, best" in capsys.readouterr().out


def test_a_choice_whose_arm_never_ran_to_its_end_is_kept_too():
    table = tables.with_block(filled(1), {}, {"loader.num_workers=2": "failed: no memory"}, [])
    assert tables.against_best(table, ["loader.num_workers=2"])["share"] is None


def test_a_tune_within_a_table_is_told_to_leave_out_what_the_table_does_not_hold(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(tables, "tuned", lambda words, *_: seen.extend(words) or {"recipe": []})
    monkeypatch.setattr(tables, "usable_cpus", lambda: range(6))
    row = tables.tune_within(BY_NAME["gpt"], Setup("cpu", tmp_path), filled(1))
    assert row["table_s"] == 18.0
    out = [word for before, word in itertools.pairwise(seen) if before == "--exclude"]
    assert [word for word in out if word.startswith("loader.num_workers")] == [
        f"loader.num_workers={number}" for number in (3, 4, 5, 6)
    ]
    assert not [word for word in out if word.startswith("loader.pin_memory")]
    assert "optimizer.fused" in out
    tried = [word for before, word in itertools.pairwise(seen) if before == "--try"]
    # Words that tune itself would refuse end the benchmark's part.
    assert len(asked_of_tune.parse(extra=tried, exclude=out).excluded) == 4


def test_no_number_is_left_out_that_a_knob_does_not_take():
    table = {"loader.prefetch_factor": (2, 4), "precision.autocast": ("off", "bf16")}
    out = tables.left_out(table, 4)
    assert [text for text in out if "=" in text] == ["loader.prefetch_factor=1", "loader.prefetch_factor=3"]
    assert asked_of_tune.parse(exclude=out)


def test_an_arm_that_fails_has_no_value_and_is_not_the_best():
    table = filled(1)
    failing = "loader.num_workers=2"
    block = {key: 1.0 for key in table["arms"] if key != failing}
    table = tables.with_block(table, block, {failing: "failed: no memory"}, [3.0] * 5)
    assert table["arms"][failing] == []
    assert table["ends"] == {failing: "failed: no memory"}
    assert tables.num_blocks(table) == 2
    assert tables.against_best(table, [])["best"] != failing
    assert table["run_s"] == pytest.approx(3.0)


def test_a_table_is_what_the_replay_reads(tmp_path):
    file = tmp_path / "starved_cpu.json"
    file.write_text(json.dumps(filled(2)))
    problem = problems.recorded(file, seed=0, share=0.25)
    assert problems.best_of(problem) == pytest.approx(-math.log(0.8))
    assert problem.budget_s == pytest.approx(0.25 * 2 * 6 * 3.0)


def test_a_whole_table_is_not_recorded_again(tmp_path):
    file = tmp_path / "starved_cpu.json"
    file.write_text(json.dumps(filled(2)))
    kept = tables.record(
        BY_NAME["starved"], Setup("cpu", tmp_path / "work"), file, blocks=2, left_s=lambda: math.inf
    )
    assert tables.num_blocks(kept) == 2
    assert not (tmp_path / "work").exists()


# What is told


def test_the_table_says_what_was_undecided_and_what_has_no_answer():
    rows = {
        "verify": {"outcome": "met", "verdict": "faster", "speedup": 1.5, "ci": [1.4, 1.6]},
        "informed": {"verdict": "undecided", "speedup": 1.01, "ci": [0.9, 1.1]},
        "autotune-pairs": {"as": "written"},
        "slowai-pairs": {"cannot": "it gave no answer"},
    }
    cells = [cell(kind, rows) for kind in rows]
    assert cells == ["1.50× [1.40, 1.60]", "~1.01× [0.90, 1.10]", "1.50× [1.40, 1.60]ᵂ", "cannot"]
    found = summary({"programs": {"gpt": rows, "mlp": {"verify": {"outcome": "nothing to verify"}}}})
    assert (found["met"], found["verified"]) == (1, 1)
    assert found["verify"]["mean"] == pytest.approx(math.sqrt(1.5))
    assert found["informed"]["faster"] == 0


def test_a_recipe_of_nothing_is_counted_as_one():
    programs = [BY_NAME["mlp"], BY_NAME["starved"]]
    tunes = idle.tunes_of(programs, 20)
    assert len({seed for _, seed in tunes.values()}) == len(tunes) == 20
    rows = {name: {"recipe": [], "num_trials": 5, "fates": {"unproved": 8}} for name in tunes}
    assert idle.summary(rows)["kept"]
    for name in list(rows)[:2]:
        rows[name] = {
            "recipe": ["env.DYNOTUNE_NOTHING_1=1"],
            "num_trials": 5,
            "fates": {"kept": 1, "unproved": 7},
        }
    assert idle.summary(rows) == {"tunes": 20, "with_a_recipe": 2, "trials": 100, "kept": False}


def test_a_tune_that_tried_nothing_says_nothing():
    tried = {"recipe": [], "num_trials": 5, "fates": {"not-tried": 7, "unproved": 1}}
    rows = {"gpt-01": tried, "gpt-02": {"recipe": [], "num_trials": 1, "fates": {"not-tried": 8}}}
    assert idle.summary(rows) == {"tunes": 1, "with_a_recipe": 0, "trials": 5, "kept": True}


def test_nothing_but_what_does_nothing_is_tried():
    words = idle.words_of(3, 60.0, seed=7)
    assert words.count("--try") == 3
    assert "loader.num_workers" in words
    assert (
        words.index("loader.num_workers")
        == words.index("--exclude", words.index("loader.num_workers") - 1) + 1
    )


def test_a_command_that_takes_too_long_is_ended(tmp_path):
    endless = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    row = run_within(0.2, endless, tmp_path, {}, patience_s=5.0)
    assert row["timed_out"]
    assert "longer" in row["failed"]


def test_kept_row_of_a_comparison_can_be_told():
    measured = json.loads((RESULTS / "cublas_small_matrices.json").read_text())
    row = parts.of_comparison(measured["comparison"])
    assert len(row["pairs"]) == row["num_pairs"]
    assert cell("informed", {"informed": row}) == "0.31× [0.14, 0.69]"
    empty = {**measured["comparison"], "speedup": None, "reason": "all pairs were void"}
    assert parts.of_comparison(empty) == {"failed": "all pairs were void"}
