"""The field's programs, what a result keeps of them, and its page; the programs are run elsewhere."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune import knobs
from lab.field import losses, page, peers, reads, rows, sources
from lab.field.programs import PROGRAMS, published
from lab.field.published import DEVICES
from lab.field.sources import SOURCES, Source
from lab.tuning import parts, work
from lab.tuning.parts import Moments, Setup

BY_NAME = {program.name: program for program in PROGRAMS}


def row(program: str, **kinds):
    return {"program": program, "device": "cpu", **kinds}


def tuned(recipe, *, recipe_s=100.0):
    return {
        "recipe": recipe,
        "stated": 1.5 if recipe else None,
        "ci": [1.4, 1.6] if recipe else None,
        "verdict": "proved" if recipe else "nothing earned a place",
        "moments_s": {"diagnosis": 20.0, **({"proof": 50.0, "recipe": recipe_s} if recipe else {})},
    }


def pairs(speedup, **more):
    return {"speedup": speedup, "ci": [speedup - 0.1, speedup + 0.1], "verdict": "faster", **more}


ROWS = [
    row("as fast as the hand", tune=tuned(["optimizer.fused=true"]), verify=pairs(1.5, outcome="met"),
        hand=pairs(1.5)),
    row("half of the gain", tune=tuned(["optimizer.fused=true"], recipe_s=140.0),
        verify=pairs(2.0, outcome="undecided"), hand=pairs(4.0)),
    row("nothing", tune=tuned([]), verify={"outcome": "nothing to verify"}, hand=pairs(1.2)),
    row("no gain", tune=tuned([]), hand={"as": "written"}),
    row("fell", tune={"failed": "it ended with 1: first\nlast"}, hand=pairs(2.0)),
    row("absent", left_out=["einx"]),
]  # fmt: skip


# Programs


def test_programs_suffice_when_they_are_counted_by_device():
    assert len(published(Path(), "cuda")) >= 24
    assert len(published(Path(), "cpu")) >= 16
    assert len(BY_NAME) == len(PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_program_is_complete_when_it_is_listed(program):
    assert set(program.on) <= set(DEVICES)
    assert not program.repository or program.repository in SOURCES
    for device in program.on:
        assert program.run_s[device] > 0 and program.tune_s[device] > 0
        assert all(isinstance(word, str) for word in program.command(device))
    for setting in program.hand_settings:
        knobs.parse(setting)


def test_a_hand_has_what_a_device_takes_when_it_is_a_cpu():
    (on_gpu,) = (one for one in published(Path(), "cuda") if one.name == "vae")
    (on_cpu,) = (one for one in published(Path(), "cpu") if one.name == "vae")
    assert "loader.pin_memory=true" in on_gpu.hand
    assert "loader.pin_memory=true" not in on_cpu.hand
    assert on_cpu.environment()["CUDA_VISIBLE_DEVICES"] == ""


def test_words_of_a_hand_reach_the_command_when_it_has_options_for_them():
    program = BY_NAME["unet"]
    arms = program.arms(program.hand, "cpu")
    assert arms.command[:2] == ["sh", "-c"] and arms.command[2].endswith("{hand}")
    assert arms.recipe == ["arg.hand="] and "arg.hand=--amp" in arms.other
    chosen = program.arms("loader.num_workers=5 cudnn.benchmark=true", "cpu")
    assert chosen.command == program.command("cpu")
    assert chosen.other == ["loader.num_workers=5", "cudnn.benchmark=true"]


# Sources


@pytest.fixture
def mirror(tmp_path):
    """A git directory with a program, what it needs not, and its revision."""
    folder = tmp_path / "mirror" / "who+what" / "repo"
    folder.mkdir(parents=True)
    for name, text in {"train.py": "print()", "big.bin": "0", "lib/a.py": "", "lib/b.bin": "0"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "All"]):
        subprocess.run([*git, *words], check=True)
    (folder.parent / "git").mkdir()
    revision = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    (folder / ".git").rename(folder.parent / "bare")
    for path in folder.iterdir():
        subprocess.run(["rm", "-r", str(path)], check=True)
    folder.rmdir()
    (folder.parent / "bare").rename(folder)
    return tmp_path / "mirror", revision.strip()


def test_only_needed_files_are_exported_when_a_revision_is_fetched(tmp_path, mirror):
    folder, revision = mirror
    source = Source("who/what", revision, ("train.py", "lib", "absent.py"), ("lib/b.bin",))
    assert not source.is_there(tmp_path)
    assert sources.export(source, tmp_path, folder) is None
    found = {path.name for path in source.folder(tmp_path).rglob("*") if path.is_file()}
    assert found == {"train.py", "a.py", sources.REVISION}
    assert source.is_there(tmp_path)


def test_the_reason_is_said_when_a_revision_is_not_there(tmp_path, mirror):
    reason = sources.export(Source("who/what", "0" * 40, ("train.py",)), tmp_path, mirror[0])
    assert reason and not (tmp_path / "what").exists()


# What they read


def test_made_up_files_have_their_formats_when_they_are_read(tmp_path):
    folder = tmp_path / "program"
    folder.mkdir()
    reads.play(folder, "cpu")
    text = (folder / "input.txt").read_text()
    assert text.startswith("O God, O God!") and len(set(text)) == 65
    reads.no_tracker(folder, "cpu")
    stub = [sys.executable, "-c", "import wandb; wandb.init(project='a').config.update({}); wandb.log({})"]
    assert subprocess.run(stub, cwd=folder).returncode == 0


# Rows


def test_a_row_is_found_again_when_a_result_is_gone_on_with():
    result = {}
    (program,) = (one for one in published(Path(), "cpu") if one.name == "makemore")
    rows.row_of(result, program)["tune"] = {"recipe": []}
    assert rows.row_of(result, program)["tune"] == {"recipe": []}
    (kept,) = result["programs"]
    assert (kept["program"], kept["device"]) == ("makemore", "cpu")
    assert kept["revision"] == SOURCES["karpathy/makemore"].revision


def test_shares_are_of_the_hand_when_both_were_measured():
    assert rows.share_of_speed(ROWS[0]) == pytest.approx(1.0)
    assert rows.share_of_speed(ROWS[1]) == pytest.approx(0.5)
    assert rows.share_of_gain(ROWS[1]) == pytest.approx(0.5)
    assert rows.share_of_speed(ROWS[2]) == pytest.approx(1 / 1.2)
    assert rows.share_of_gain(ROWS[2]) == pytest.approx(0.0)
    assert rows.share_of_gain(ROWS[3]) is None
    assert rows.share_of_speed(ROWS[4]) is None


def test_page_says_that_no_hand_was_measured_when_none_was():
    said = page.first_line([row("alone", tune=tuned(["optimizer.fused=true"]))])
    assert "a recipe for 1 of 1 program. How much an informed hand gains was not measured." in said
    assert "We lose" not in said


def test_a_failed_tune_counts_against_us_when_the_hand_gains():
    counts = rows.summary(ROWS)
    assert counts["hand_gains"] == 4
    assert counts["recipe_where_hand_gains"] == 2
    assert counts["tuned"] == 4 and counts["failed"] == 1
    assert (counts["verified"], counts["met"]) == (2, 1)
    assert counts["median_s_to_recipe"] == 120.0
    assert counts["least_share_of_hand"] == pytest.approx(0.5)


def test_the_page_begins_with_what_is_lost_when_something_is(tmp_path):
    file = tmp_path / "field_cpu.json"
    file.write_text(json.dumps({"programs": ROWS, "hardware": {"host.cpu": "a CPU"}, "versions": {}}))
    lines = page.page([file], None).splitlines()
    assert "gains 5% or more in 4, of which 2 have a recipe" in lines[2]
    assert "half of the gain (50% of the hand)" in lines[2]
    assert "`tune` failed in: fell" in lines[2]
    assert "- absent was left out, without einx" in lines
    assert "- fell, tune: last" in lines
    assert any(line.startswith("| nothing | 20 | - | - |") for line in lines)


def test_the_page_says_so_when_nothing_was_measured(tmp_path):
    assert "Nothing was measured yet." in page.page([tmp_path / "none.json"], None)


# Moments, parts and peers


def test_moments_are_those_of_the_study_when_it_changes(tmp_path):
    moments = Moments(tmp_path)
    (tmp_path / "study").mkdir()
    study = {"diagnosis": {"reason": "not yet made"}, "within": [], "recipe": None, "finished": False}
    steps = (
        (1.0, {}),
        (21.0, {"diagnosis": {"verdict": "The host sets the pace."}}),
        (40.0, {"within": [{"verdict": "undecided"}]}),
        (55.5, {"within": [{"verdict": "undecided"}, {"verdict": "faster"}]}),
        (120.0, {"recipe": ["optimizer.fused=true"], "finished": True}),
    )
    for at_s, change in steps:
        study |= change
        (tmp_path / "study" / "study.json").write_text(json.dumps(study) + " " * int(at_s))
        moments.look(at_s, study)
    moments.hear(130.0, ["Report"])
    assert moments.told() == {"diagnosis": 21.0, "proof": 55.5, "recipe": 120.0, "end": 120.0}
    assert moments.log == " 130.0 Report\n"


def test_a_comparison_is_bounded_when_it_has_its_seconds(tmp_path):
    program = BY_NAME["open-clip"]
    long = {"tune": {"run_s": 100.0, "recipe": []}}
    free, bounded = Setup("cuda", tmp_path), Setup("cuda", tmp_path, pairs_s=150.0)
    assert parts.estimate_s("hand", program, long, free) == 1500.0
    assert parts.estimate_s("hand", program, long, bounded) == 900.0
    assert parts.estimate_s("hand", program, {"tune": {"run_s": 12.0}}, bounded) == 150.0
    assert parts.needs_no_run("hand", BY_NAME["nanogpt"], {}) == {"as": "written"}


def test_a_peer_that_takes_no_command_is_not_begun_when_it_is_asked():
    program = BY_NAME["makemore"]
    assert "takes no command" in parts.needs_no_run("aitune", program, {})["cannot"]
    assert parts.needs_no_run("train-doctor", program, {}) is None


def test_proofs_of_train_doctor_are_in_our_settings_when_they_are_read():
    described = "num_workers=5, pin_memory=True, torch.backends.cudnn.benchmark = True"
    found = peers.settings_of(described)
    assert found == ["loader.num_workers=5", "loader.pin_memory=true", "cudnn.benchmark=true"]
    for setting in found:
        knobs.parse(setting)
    assert peers.settings_of("") == []


# Losses


def test_losses_are_read_when_a_program_prints_them():
    text = "Epoch 1 loss: 2.5\rEpoch 1 loss: 2.25\nEpoch 2 loss: nan\nloss less"
    assert losses.printed(text, "loss: ")[:2] == [2.5, 2.25]
    assert losses.printed("1: 3.25\nat 2: 4.5", r"^\d+: ") == [3.25]


@pytest.mark.parametrize(("candidate", "ok"), [([4.0, 3.0, 2.02, 1.02], True), ([4.0, 3.5, 2.9, 2.2], False)])
def test_losses_are_compared_when_the_arms_printed_them(tmp_path, candidate, ok):
    for name, values in (("b", [4.0, 3.0, 2.0, 1.0, 0.9]), ("c", candidate)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stdout").write_text("".join(f"loss {value}\n" for value in values))
    comparison = {"pairs": [{"baseline_run": "b", "candidate_run": "c"}] * 2}
    found = losses.compared(comparison, tmp_path, "loss ")["losses"]
    assert (found["num"], found["own"], found["ok"]) == (4, 0.0, ok)


def test_nothing_is_said_of_losses_when_too_few_were_printed(tmp_path):
    assert losses.compared({"pairs": [{"baseline_run": "b", "candidate_run": "c"}]}, tmp_path, "loss ") == {}


def test_parts_of_an_earlier_recipe_are_dropped_when_a_program_is_tuned_again(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.result_file.describe", dict)
    monkeypatch.setattr(work, "_card", lambda: "a GPU")
    monkeypatch.setattr(
        work, "do", lambda kind, *rest: {"recipe": [], "stated": None, "ci": None, "wall_s": 1}
    )
    (program,) = (one for one in published(Path(), "cpu") if one.name == "makemore")
    out = tmp_path / "field.json"
    out.write_text(
        json.dumps({"programs": [row("makemore", verify={"outcome": "met"}, hand={"as": "written"})]})
    )
    work.work_on(program, ["tune"], Setup("cpu", tmp_path), out, lambda: math.inf, rows.row_of)
    (kept,) = json.loads(out.read_text())["programs"]
    assert "verify" not in kept and {"tune", "hand"} <= set(kept)
