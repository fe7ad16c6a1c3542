"""`dynotune startup time`, as a user types it."""

from __future__ import annotations

import sys

import msgspec
import pytest

from dynotune.cli.startup import gate_code
from dynotune.schema import document
from dynotune.schema.run import RunSpec
from dynotune.schema.startup import StartChange, Startup

from .conftest import TRAIN

# What it keeps makes its next start another one, and no file of the user's is a cache of it.
KEEPS = """
import os, pathlib, signal, sys
cache = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]) / "fxgraph"
off = os.environ.get("TORCHINDUCTOR_FORCE_DISABLE_CACHES")
found = cache.exists()
if not off:
    cache.mkdir(exist_ok=True)
    (cache / "graph").write_bytes(bytes(1000))
print("SAW", found, off, os.environ["TMPDIR"])
print("listening on 80", flush=True)
signal.pause()
"""


def times(user, *words: str, **more):
    return user.types(
        "startup", "time", "--run-dir", str(user.runs), "--no-lock", "--blocks", "2", *words, **more
    )


@pytest.fixture
def startup(user):
    def read() -> dict:
        (found,) = user.runs.glob("*/startup.json")
        return msgspec.json.decode(found.read_bytes())

    return read


def test_a_program_without_steps_is_timed_to_its_line_with_caches_of_its_own(user, startup):
    user.write("serve.py", KEEPS)
    mine = user.runs.parent / "mine"
    mine.mkdir()
    user.env |= {"TORCHINDUCTOR_CACHE_DIR": str(mine), "TMPDIR": str(user.runs.parent)}
    done = times(user, "--ready-pattern", r"listening on \d+", "--", sys.executable, "serve.py")
    assert done.returncode == 0, done.stderr
    assert "to the line" in done.stdout
    found = startup()
    assert [pilot["arm"] for pilot in found["pilots"]] == ["cold", "warm", "off"]
    # On a busy machine blocks are void; what they were is kept all the same.
    blocks = found["blocks"] or [voided["values"] for voided in found["voided"]]
    folder = next(user.runs.glob("*/startup.json")).parent
    seen = {path.parent.name: path.read_text().split() for path in folder.glob("0*/stdout")}
    assert len(seen) == 3 * (len(found["blocks"]) + len(found["voided"]))
    for name, words in seen.items():
        arm = name.partition("-")[2]
        assert words[1:3] == {"cold": ["False", "None"], "warm": ["True", "None"], "off": ["False", "1"]}[arm]
    for block in blocks:
        added = {
            start["arm"]: [growth["size_bytes"] for growth in start["added"]] for start in block["starts"]
        }
        assert added == {"cold": [1000], "warm": [], "off": []}
        assert all(0.01 < start["value_s"] < 120 for start in block["starts"])
    # Nothing of the user's was used or changed, and temporary folders are gone.
    assert list(mine.iterdir()) == []
    assert not list(user.runs.parent.glob("dt-*"))
    assert (folder / "caches" / "warm" / "inductor" / "fxgraph" / "graph").exists()
    assert not (folder / "caches" / "cold").exists()


@pytest.mark.long
def test_a_torch_program_is_timed_to_its_first_step_and_its_phases_sum_to_it(user, startup):
    user.write("train.py", TRAIN)
    done = times(user, "--json", "found.json", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "torch import" in done.stdout
    found = startup()
    assert msgspec.json.decode((user.cwd / "found.json").read_bytes()) == found
    for pilot in found["pilots"]:
        known = [value for value in pilot["phases"].values() if isinstance(value, float)]
        assert sum(known) == pytest.approx(pilot["value_s"])
        assert pilot["phases"]["torch_import"] > 0.05
    assert found["pilots"][0]["until_steady_s"] is not None
    assert found["finished"]


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (["--", "sh", "-c", "echo started; exit 0"], 3, "--ready-pattern REGEX"),
        (["--ready-pattern", "never", "--", "sh", "-c", "echo started; exit 0"], 4, "│ started"),
        pytest.param(
            ["--ready-pattern", "never", "--", "sh", "-c", "echo broken >&2; exit 7"],
            4,
            "with exit code 7",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["--ready-pattern", "never", "--timeout", "1s", "--", "sleep", "100"],
            3,
            "held back",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["--ready-pattern", "(", "--", "true"], 2, "no regular expression", marks=pytest.mark.long
        ),
        pytest.param(["--ready-pattern", "", "--", "true"], 2, "empty line", marks=pytest.mark.long),
        pytest.param([], 2, "There is no command to run", marks=pytest.mark.long),
    ],
)
def test_startup_time_refuses_commands_that_cannot_be_timed_with_the_reason(user, words, exit_code, said):
    done = times(user, *words)
    assert done.returncode == exit_code, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param([], "There is no startup it", marks=pytest.mark.long),
        pytest.param(["--", "true"], "takes no command", marks=pytest.mark.long),
        (["--blocks", "2"], "takes no --blocks"),
    ],
)
def test_a_resumed_startup_takes_nothing_else(user, words, said):
    done = user.types("startup", "time", "--run-dir", str(user.runs), "--resume", "it", *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "true"], "takes no command"),
        pytest.param(["--blocks", "4"], "takes no --blocks", marks=pytest.mark.long),
        pytest.param([], "There is no startup it", marks=pytest.mark.long),
    ],
)
def test_startup_time_refuses_to_resume_with_the_reason_when_options_do_not_fit(user, words, said):
    done = user.types("startup", "time", "--resume", "it", "--run-dir", str(user.runs), *words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["same", "faster"], 0),
        (["slower", "undecided"], 1),
        (["same", "undecided"], 5),
        ([], 5),
    ],
)
def test_gate_tells_undecided_starts_from_starts_that_passed(verdicts, code):
    changes = [
        StartChange(arm=arm, verdict=verdict, ratio=1.0, num_before=4, num_now=4)
        for arm, verdict in zip(("cold", "warm"), verdicts, strict=False)
    ]
    assert gate_code(changes) == code


def test_gate_is_refused_when_the_resumed_starts_have_no_kept_record(user):
    folder = user.runs / "it"
    folder.mkdir(parents=True)
    run = RunSpec(command=["true"], cwd=user.cwd, env={}, base=user.runs)
    document.write(folder / "startup.json", Startup(id="it", run=run))
    done = user.types("startup", "time", "--run-dir", str(user.runs), "--resume", "it", "--fail-on", "slower")
    assert done.returncode == 2, done.stderr
    assert "was begun without one" in " ".join(done.stderr.split())
