"""`dynotune recipe`, and `dynotune run --recipe` on another machine than the recipe's."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import msgspec
import pytest

from dynotune import cli, probe
from dynotune.cli import compare
from dynotune.recipes.writing import facts_to_keep
from dynotune.schema import recipe as recipes
from dynotune.schema.comparison import Comparison, FailedArm

from .conftest import User, has_typed
from .test_bad_input import said

PYTHON = sys.executable
COMMAND = ["python", "train.py", "--batch", "32"]
RECIPE = """# mine
[recipe]
schema = "dynotune.recipe/2"
command = ["python", "train.py", "--batch", "32"]
objective = "throughput"
speedup = 1.42
ci = [1.38, 1.47]
num_pairs = 8
step_function = "train:step"
caches = "cold"
[settings]
"env.OMP_SCHEDULE" = "1"
"loader.num_workers" = 4
[[proof]]
knob = "env.OMP_SCHEDULE"
speedup = 1.2
ci = [1.1, 1.3]
num_pairs = 6
effect = "exact"
by = "ablation"
value = "1"
[[proof]]
knob = "loader.num_workers"
speedup = 1.3
ci = [1.2, 1.4]
num_pairs = 6
effect = "sampling"
by = "ablation"
value = 4
[facts]
gpu_count = 0
torch = "1.0.0"
"""


@pytest.fixture
def types(tmp_path, monkeypatch, capsys):
    """Runs `dynotune recipe …` here, without a process, in a folder with `recipe.toml`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    has_typed(COMMAND, cwd=tmp_path, runs=tmp_path / "state" / "dynotune" / "runs")

    def run(*words, recipe=None):
        if recipe is not None:
            (tmp_path / "recipe.toml").write_text(recipe)
        with pytest.raises(SystemExit) as end:
            cli.main(["recipe", *words])
        seen = capsys.readouterr()
        return end.value.code, seen.out, seen.err

    return run


@pytest.fixture
def measured(monkeypatch):
    """Stands for the comparison: what is asked of it, and what it answers."""
    asked = []
    answer = {"verdict": "faster", "speedup": 1.40, "ci": (1.35, 1.45), "num_pairs": 6}

    def measure(request, **_):
        asked.append(request)
        return Comparison(id="c", run=request.run.recorded, candidate_settings=request.candidate, **answer)

    monkeypatch.setattr(compare, "measure", measure)
    monkeypatch.setattr(
        "dynotune.measure.live.facts_of", lambda request: {"gpu.count": 0, "torch.version": "1.0.0"}
    )
    return asked, answer


# show


def test_a_recipe_is_shown_with_its_proofs(types):
    code, out, _ = types("show", "recipe.toml")
    assert code == 0
    for text in (
        "python train.py --batch 32",
        "1.420× (1.38× to 1.47×), 8 pairs",
        "loader.num_workers=4",
        "1.300×",
    ):
        assert text in out
    assert "ablated, 6 pairs" in out and "sampling" in out and "torch  1.0.0" in out


def test_recipe_show_marks_settings_that_run_would_refuse(types):
    code, out, _ = types(
        "show", "recipe.toml", recipe=RECIPE.replace('"env.OMP_SCHEDULE" =', '"env.LD_PRELOAD" =')
    )
    assert code == 0 and "foreign code" in out and out.count("refused") == 2


def test_a_shown_recipe_cannot_move_the_cursor(types):
    code, out, _ = types("show", "recipe.toml", recipe=RECIPE.replace('"32"', r'"\u001b[2J\u202e"'))
    assert code == 0 and "\x1b[2J" not in out and "\u202e" not in out and r"\x1b[2J" in out


def test_a_value_that_was_edited_has_no_proof(types):
    _, out, _ = types("show", "recipe.toml", recipe=RECIPE.replace('workers" = 4', 'workers" = 8'))
    assert "loader.num_workers was proved at another value, 4" in out


def test_a_recipe_as_json_is_its_table(types, tmp_path):
    code, out, _ = types("show", "recipe.toml", "--json", "-")
    shown = msgspec.json.decode(out)
    assert code == 0 and shown["settings"] == {"env.OMP_SCHEDULE": "1", "loader.num_workers": 4}
    assert shown["proof"][1]["ci"] == [1.2, 1.4]


@pytest.mark.parametrize("words", [("show",), ("verify",), ("export", "--format", "shell")])
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[recipe]\nschema = 'dynotune.recipe/9'\n", "dynotune.recipe/9"),
        ("\0", "is not TOML"),
        ("x", "is not TOML"),
    ],
)
def test_recipe_subcommands_refuse_a_file_that_is_no_recipe_and_leave_it_alone(
    types, tmp_path, words, text, error
):
    (tmp_path / "recipe.toml").write_text(text)
    assert types(words[0], "recipe.toml", *words[1:])[0] == 3
    assert error in types(words[0], "recipe.toml", *words[1:])[2]
    assert (tmp_path / "recipe.toml").read_text() == text


# verify


def test_a_recipe_is_proved_again_as_it_was_proved(types, measured):
    code, out, err = types("verify", "recipe.toml", "--pairs", "6", "--budget", "2m", "--no-lock")
    (request,) = measured[0]
    assert code == 0, err
    run = request.run
    assert run.command == ["python", "train.py", "--batch", "32"] and "python train.py --batch 32" in err
    assert [str(setting) for setting in request.candidate] == ["env.OMP_SCHEDULE=1", "loader.num_workers=4"]
    assert (run.settings, request.max_pairs, request.budget_s, run.lock) == ([], 6, 120, False)
    assert (run.step_function, run.caches, run.sandbox) == ("train:step", "cold", True)
    assert "met again" in out and "1.40× is not below 1.380×" in out and "Met: better again" in out


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"speedup": 1.10, "ci": (1.05, 1.15)}, "not met"),
        ({"speedup": 1.30, "ci": (1.10, 1.50)}, "undecided"),
        ({"verdict": "same", "speedup": 1.0, "ci": (0.99, 1.01)}, "not met"),
    ],
)
def test_a_recipe_that_is_not_met_again_is_a_gate_that_says_no(types, measured, tmp_path, answer, text):
    measured[1].update(answer)
    code, out, _ = types("verify", "recipe.toml", "--json", "v.json", "--", PYTHON, "train.py")
    assert code == 1 and f"recipe    {text}" in out
    written = msgspec.json.decode((tmp_path / "v.json").read_bytes())
    assert (
        written["outcome"].replace("-", " ") == text
        and written["comparison"]["verdict"] == measured[1]["verdict"]
    )
    assert written["differs"] == ["command differs: --batch 32 where it was proved, nothing here"]


def test_an_arm_that_fails_is_the_answer(types, measured):
    measured[1].update(verdict=None, speedup=None, ci=None, failed=FailedArm("candidate", 7, ["boom"]))
    code, out, err = types("verify", "recipe.toml")
    assert code == 4 and "boom" in out and "failed in the candidate" in err


def test_a_variable_of_a_recipe_is_typed_to_prove_it_again(types, measured):
    own = RECIPE.replace("env.OMP_SCHEDULE", "env.A")
    measured[1].update(speedup=1.10, ci=(1.05, 1.15))
    code, out, err = types("verify", "recipe.toml", recipe=own)
    assert code == 1 and "--set env.A=1" in " ".join(err.split())
    assert "Not all settings of the recipe were applied" in " ".join(out.split())
    types("verify", "recipe.toml", "--set", "env.A=2")
    without, request = measured[0]
    assert [str(setting) for setting in without.candidate] == ["loader.num_workers=4"]
    assert [str(setting) for setting in request.candidate] == ["env.A=2", "loader.num_workers=4"]
    assert request.run.settings == []


def test_a_command_that_its_user_has_not_typed_here_is_not_run(types, measured, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "recipe.toml").write_text(RECIPE)
    for recipe, folder in ((RECIPE.replace('"32"', '"64"'), tmp_path), (RECIPE, tmp_path / "elsewhere")):
        monkeypatch.chdir(folder)
        (folder / "recipe.toml").write_text(recipe)
        code, _, err = types("verify", "recipe.toml")
        assert code == 2 and "not measured here" in err
        assert "dynotune recipe verify recipe.toml -- python train.py --batch" in " ".join(err.split())
    assert measured[0] == []


def test_a_recipe_without_a_command_asks_for_one(types, measured):
    code, _, err = types(
        "verify",
        "recipe.toml",
        recipe='[recipe]\nschema = "dynotune.recipe/2"\n[settings]\nenv.OMP_SCHEDULE = 1\n',
    )
    assert code == 2 and "dynotune recipe verify recipe.toml -- " in err
    assert measured[0] == []


@pytest.mark.parametrize(
    ("text", "code", "error"),
    [
        (
            RECIPE.replace('"loader.num_workers"', '"loader.num_worker"', 1),
            2,
            "Did you mean loader.num_workers",
        ),
        (
            RECIPE.replace('"env.OMP_SCHEDULE" =', '"env.PYTHONHOME" =').replace('"loader.num', "#", 1),
            2,
            "foreign code",
        ),
        (RECIPE.partition("[settings]")[0], 2, "has no setting to apply"),
    ],
)
def test_a_recipe_that_cannot_be_applied_is_not_measured(types, measured, text, code, error):
    found, _, err = types("verify", "recipe.toml", "--", "python", "x.py", recipe=text)
    assert found == code and error in err
    assert measured[0] == []


def test_the_objective_of_the_recipe_is_the_comparisons(types, measured):
    types("verify", "recipe.toml", recipe=RECIPE.replace('"throughput"', '"memory"'))
    assert measured[0][0].run.objective == "memory"


# export


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("shell", "export OMP_SCHEDULE=1\n"),
        ("docker", 'ENV OMP_SCHEDULE="1"\n'),
        ("kubernetes", 'name: "OMP_SCHEDULE"'),
        ("sysctl", "/etc/sysctl.d"),
    ],
)
def test_a_recipe_is_written_for_others(types, tmp_path, format_, text):
    code, out, err = types("export", "recipe.toml", "--format", format_)
    assert code == 0 and text in out, err
    assert types("export", "recipe.toml", "--format", format_, "--output", "there")[:2] == (0, "")
    assert (tmp_path / "there").read_text() == out


def test_a_variable_of_a_recipe_is_typed_to_export_it(types):
    words = ("export", "recipe.toml", "--format", "shell")
    code, out, err = types(*words, recipe=RECIPE.replace("env.OMP_SCHEDULE", "env.A"))
    assert code == 0 and "--set env.A=1" in err
    assert "export A" not in out and "#     --set env.A=1\n" in out
    code, out, err = types(*words, "--set", "env.A=2")
    assert code == 0, err
    assert "export A=2\n" in out and "--set env.A=2" in out


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--format", "fax"], 2, "shell, docker, kubernetes, sysctl, patch or card"),
        (["--format", "shell", "--output", "recipe.toml"], 2, "is the recipe itself"),
        (["--format", "shell", "--output", "none/there"], 2, "Cannot write none/there"),
        (["--format", "kubernetes", "--shm-size", "much"], 2, "--shm-size 8Gi"),
    ],
)
def test_recipe_export_says_why_when_it_cannot_export(types, tmp_path, words, code, error):
    found, out, err = types("export", "recipe.toml", *words)
    assert (found, out) == (code, "") and error in err
    assert (tmp_path / "recipe.toml").read_text() == RECIPE


# run


@pytest.fixture
def run(user):
    def run(*words, recipe=RECIPE):
        user.write("recipe.toml", recipe.replace('"loader.num_workers" = 4\n', ""))
        user.write("train.py", "import os; print('it is', os.environ.get('OMP_SCHEDULE'))")
        command = ["--", PYTHON, "train.py", "--batch", "64"]
        return user.types("run", "--run-dir", str(user.runs), "--recipe", "recipe.toml", *words, *command)

    return run


def test_run_says_on_stderr_in_what_this_is_not_where_it_was_proved(run):
    done = run()
    said(
        done,
        0,
        "recipe.toml: torch differs: 1.0.0 where it was proved, ",
        "recipe.toml: command differs: --batch 32 where it was proved, --batch 64 here",
    )
    assert done.stdout == "it is 1\n"


def test_a_strict_run_refuses_before_the_command_starts(user, run):
    done = run("--strict")
    said(done, 3, "torch differs", "--batch 32", "next: Prove it here")
    assert done.stdout == ""
    assert not user.runs.exists()


def proved_here(user: User) -> str:
    """A recipe that was proved on this machine, with the command that `run` starts."""
    facts = {
        **probe.host.facts(),
        **probe.nvml.facts(user.env),
        **probe.torch_build.ask(PYTHON, user.cwd, user.env),
    }
    command = ["python3", "/x/train.py", "--batch", "64"]
    path = user.write("proved.toml", RECIPE.replace('"loader.num_workers" = 4\n', "").replace('"32"', '"64"'))
    recipes.write(path, msgspec.structs.replace(recipes.read(path), facts=facts_to_keep(facts, command)))
    return path.read_text()


def test_strict_run_goes_on_when_everything_is_as_it_was_proved(user, run):
    proved = proved_here(user)
    done = run("--strict", recipe=proved)
    assert (done.returncode, done.stdout) == (0, "it is 1\n")
    assert "recipe.toml" not in done.stderr, "nothing differs"
    done = run("--strict", recipe=proved.replace('OMP_SCHEDULE" = "1"', 'OMP_SCHEDULE" = "2"'))
    said(
        done,
        3,
        "env.OMP_SCHEDULE=2 is unproved",
        f"recipe verify recipe.toml -- {PYTHON} train.py --batch 64;",
    )
    assert done.stdout == ""


def test_strict_without_a_recipe_is_refused(user):
    said(user.types("run", "--strict", "--", "true"), 2, "Add --recipe FILE")


# patch and card

LOADER = "from torch.utils.data import DataLoader\nDataLoader([])\n"


def test_exported_patch_names_its_places_and_what_it_leaves_out(types, tmp_path):
    (tmp_path / "train.py").write_text(LOADER)
    code, out, err = types("export", "recipe.toml", "--format", "patch")
    assert code == 0 and "+DataLoader([], num_workers=4)" in out and "1 of 2 settings" in out
    assert "train.py:2: DataLoader([]): num_workers=4" in out
    assert "Not in the patch: env.OMP_SCHEDULE=1: OMP_SCHEDULE is read when the process starts" in err


def test_exported_patch_is_refused_when_no_setting_has_a_place(types, tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    code, out, err = types("export", "recipe.toml", "--format", "patch")
    assert code == 3 and not out
    assert "no line of the program's files calls DataLoader" in " ".join(err.split())


def test_exported_patch_is_verified_as_a_revision_when_asked(types, tmp_path, measured):
    (tmp_path / "train.py").write_text(LOADER)
    for words in (["init", "-q"], ["add", "train.py"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    code, out, _ = types("export", "recipe.toml", "--format", "patch", "--output", "a.patch", "--verify")
    (request,), _ = measured
    assert [one.knob for one in request.candidate] == ["git.ref"] and not request.run.settings
    # 1.40× is above the lower end of the stated interval.
    assert code == 0 and "met" in out and "env.OMP_SCHEDULE=1 is not in the patch" in " ".join(out.split())
    assert (tmp_path / "train.py").read_text() == LOADER


@pytest.mark.parametrize("more", [(), ("--output", "a.sh")])
def test_verify_is_refused_when_there_is_no_patch_to_keep(types, more):
    code, _, err = types("export", "recipe.toml", "--format", "shell" if more else "patch", "--verify", *more)
    assert code == 2 and "--format patch, and --output FILE" in " ".join(err.split())


def test_card_is_an_svg_that_loads_nothing(types):
    text = RECIPE.replace('"--batch", "32"', '"<script>&", "--token=hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"')
    code, out, _ = types("export", "recipe.toml", "--format", "card", recipe=text)
    tree = ElementTree.fromstring(out)
    texts = [node.text for node in tree.iter() if node.text and node.text.strip()]
    assert code == 0 and "1.42× as fast (throughput)" in texts and "loader.num_workers=4" in texts
    assert not any("href" in name for node in tree.iter() for name in node.attrib) and "hf_abc" not in out
