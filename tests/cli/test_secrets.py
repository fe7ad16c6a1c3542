"""Secrets reach the command as they were typed, and nothing that dynotune keeps, writes or says."""

from __future__ import annotations

import sys

import msgspec
import pytest

from dynotune import cli
from dynotune.cli import compare as comparing
from dynotune.schema.comparison import Comparison

from .conftest import CALL, MARKED, QUICK, User, has_typed
from .test_bad_input import said

PYTHON = sys.executable
VARIABLE, ARGUMENT, LOGIN, INHERITED = "var-S3cr3t-1", "arg-S3cr3t-2", "log-S3cr3t-3", "env-S3cr3t-4"
SECRETS = (VARIABLE, ARGUMENT, LOGIN, INHERITED)
BY_RUNS = (*QUICK, *MARKED, "--in-process", "never")
WORDS = ("--token", ARGUMENT, f"--data=https://me:{LOGIN}@example.org/x")
SHOWS = (
    "import os, sys\nprint(os.environ.get('HF_TOKEN'), os.environ['MY_API_KEY'], *sys.argv[1:], flush=True)\n"
)
RECIPE = '[recipe]\nschema = "dynotune.recipe/2"\n'


def leaks(
    user: User, *, but: tuple[str, ...] = ("stdout", "stderr", "show.py", "fail.py")
) -> dict[str, list[str]]:
    """Files below the user's folders that hold a secret; what the command itself printed is its own."""
    files = [path for path in user.cwd.parent.rglob("*") if path.is_file() and path.name not in but]
    held = {str(path): [one for one in SECRETS if one.encode() in path.read_bytes()] for path in files}
    return {path: found for path, found in held.items() if found}


def hidden_in(text: str) -> bool:
    return not any(secret in text for secret in SECRETS)


@pytest.fixture
def user(user):
    user.env["MY_API_KEY"] = INHERITED
    return user


def test_run_keeps_no_secret_and_the_command_has_them_all(user):
    user.write(
        "show.py", SHOWS + "import torch\nos.environ['HF_TOKEN'] = 'other-1'\nprint(os.environ['HF_TOKEN'])\n"
    )
    words = ("--run-dir", str(user.runs), "--json", "run.json", "--set", f"env.HF_TOKEN={VARIABLE}")
    done = user.types("run", *words, "--", PYTHON, "show.py", *WORDS)
    said(done, 0)
    assert done.stdout == f"{VARIABLE} {INHERITED} {' '.join(WORDS)}\n{VARIABLE}\n"
    assert hidden_in(done.stderr) and leaks(user) == {}
    record = msgspec.json.decode((user.cwd / "run.json").read_bytes())
    assert record["command"][2:] == ["--token", "@redacted", "--data=https://@redacted@example.org/x"]
    # It was kept against the program, and read back, though the plan does not hold it.
    assert [(one["knob"], one["found"], one["ok"]) for one in record["readback"]] == [
        ("env.HF_TOKEN", "@redacted", True)
    ]


@pytest.mark.long
def test_the_last_lines_of_a_command_that_failed_hold_no_secrets(user):
    fail = SHOWS + "raise ValueError(f'401 for {sys.argv[2]} and {os.environ[\"HF_TOKEN\"]}')\n"
    user.write("fail.py", fail)
    words = ("compare", f"env.HF_TOKEN={VARIABLE}", "--run-dir", str(user.runs), *QUICK, "--json", "-")
    done = user.types(*words, "--baseline", f"env.HF_TOKEN={INHERITED}", "--", PYTHON, "fail.py", *WORDS)
    said(done, 4, "401 for @redacted and @redacted")
    assert hidden_in(done.stdout + done.stderr)
    assert leaks(user) == {}


@pytest.mark.long
def test_a_comparison_with_secrets_is_shown_and_kept_without_them(user):
    user.write("show.py", CALL)
    words = ("compare", f"env.HF_TOKEN={VARIABLE}", "--run-dir", str(user.runs), *BY_RUNS)
    done = user.types(*words, "--json", "answer.json", "--", PYTHON, "show.py", *WORDS)
    said(done, 0)
    assert "env.HF_TOKEN=@redacted" in done.stdout and "--token @redacted" in " ".join(done.stdout.split())
    assert hidden_in(done.stdout + done.stderr) and leaks(user) == {}
    shown = user.types("report", str(user.comparison_folder()))
    assert shown.returncode == 0 and hidden_in(shown.stdout + shown.stderr)


@pytest.mark.long
def test_a_comparison_goes_on_with_secrets_that_are_typed_again(user):
    """As if the power had gone before the first pair was finished."""
    user.write("show.py", CALL)
    begun = ("compare", f"env.HF_TOKEN={VARIABLE}", "--run-dir", str(user.runs), *BY_RUNS)
    user.types(*begun, "--", PYTHON, "show.py", *WORDS)
    folder = user.comparison_folder()
    kept = msgspec.json.decode((folder / "comparison.json").read_bytes())
    undecided = {"verdict": None, "pairs": [], "voided": [], "num_pairs": 0, "speedup": None, "ci": None}
    (folder / "comparison.json").write_bytes(msgspec.json.encode(kept | undecided))

    again = ("compare", "--run-dir", str(user.runs), "--resume", folder.name, "--no-lock")
    said(user.types(*again), 2, "No record holds secrets", "env.HF_TOKEN and the command", "after two dashes")
    said(user.types(*again, "env.HF_TOKEN=x-1", "--", PYTHON, "other.py"), 2, "another command")
    done = user.types(*again, f"env.HF_TOKEN={VARIABLE}", "--", PYTHON, "show.py", *WORDS)
    said(done, 0)
    assert hidden_in(done.stdout + done.stderr) and leaks(user) == {}
    assert user.comparison()["pairs"] or user.comparison()["voided"]


def test_resume_takes_no_command_when_the_record_holds_no_secrets(user):
    folder = user.runs / "it"
    folder.mkdir(parents=True)
    (folder / "comparison.json").write_text("{}")
    again = ("compare", "--run-dir", str(user.runs), "--resume", "it", "--", PYTHON, "show.py")
    said(user.types(*again), 2, "takes no command")


@pytest.fixture
def types(tmp_path, monkeypatch, capsys):
    """Runs `dynotune …` here, without a process; what is measured is what was asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    asked = []

    def measure(request, **_):
        asked.append(request)
        fields = {"verdict": "faster", "speedup": 1.4, "ci": (1.3, 1.5), "num_pairs": 6}
        return Comparison(id="c", run=request.run.recorded, candidate_settings=request.candidate, **fields)

    monkeypatch.setattr(comparing, "measure", measure)
    monkeypatch.setattr("dynotune.measure.live.facts_of", lambda request: {"gpu.count": 0})

    def types(*words):
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        seen = capsys.readouterr()
        assert hidden_in(seen.out + seen.err)
        return end.value.code, " ".join((seen.out + seen.err).split())

    types.asked = asked
    return types


def test_a_recipe_whose_secrets_were_left_out_is_proved_with_those_of_now(types, tmp_path):
    command = ["python", "t.py", "--token", "@redacted"]
    settings = '"env.HF_TOKEN" = "@redacted"\n"env.OMP_DYNAMIC" = true\n'
    (tmp_path / "recipe.toml").write_text(f"{RECIPE}command = {command}\n[settings]\n{settings}")
    code, text = types("recipe", "verify", "recipe.toml")
    assert code == 2 and "held secrets" in text and "--set env.HF_TOKEN=VALUE" in text
    now = ("--set", f"env.HF_TOKEN={VARIABLE}", "--", "python", "t.py", "--token", ARGUMENT)
    code, text = types("recipe", "verify", "recipe.toml", *now)
    (request,) = types.asked
    assert code == 0 and "command differs" not in text
    assert request.run.command == list(now[3:])
    assert [str(one) for one in request.candidate] == [f"env.HF_TOKEN={VARIABLE}", "env.OMP_DYNAMIC=true"]


@pytest.mark.parametrize("format_", ["shell", "docker", "kubernetes"])
def test_no_export_holds_a_secret(types, tmp_path, format_):
    command = ["python", "t.py", "--token", ARGUMENT, f"--data=https://me:{LOGIN}@example.org"]
    (tmp_path / "recipe.toml").write_text(
        f'{RECIPE}command = {command}\n[settings]\n"env.OMP_DYNAMIC" = true\n'
    )
    typed = ("--set", f"env.HF_TOKEN={VARIABLE}", "--set", f"env.https_proxy=http://me:{LOGIN}@proxy")
    code, text = types("recipe", "export", "recipe.toml", "--format", format_, *typed)
    assert code == 0 and "Left out, as secrets: HF_TOKEN, https_proxy" in text
    assert "OMP_DYNAMIC" in text


def test_a_recipe_is_shown_without_secrets_that_somebody_wrote_into_it(types, tmp_path):
    settings = f'"env.HF_TOKEN" = "{VARIABLE}"\n'
    (tmp_path / "recipe.toml").write_text(
        f'{RECIPE}command = ["python", "--token", "{ARGUMENT}"]\n[settings]\n{settings}'
    )
    assert types("recipe", "show", "recipe.toml")[0] == 0
    assert types("recipe", "show", "recipe.toml", "--json", "-")[0] == 0
    code, text = types("recipe", "verify", "recipe.toml", "--set", "env.OMP_DYNAMIC=true")
    assert code == 2 and "not measured here" in text and "-- python --token @redacted" in text
    has_typed(["python", "--token", "@redacted"], cwd=tmp_path, runs=tmp_path / "state" / "dynotune" / "runs")
    code, text = types("recipe", "verify", "recipe.toml", "--set", "env.OMP_DYNAMIC=true")
    assert code == 0 and "own command: python --token @redacted" in text
