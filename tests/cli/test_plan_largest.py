"""`dynotune plan NAME`: what it takes, what it refuses, and a search on a real program."""

import json
import sys

import pytest

from dynotune import cli
from dynotune.cli.plan import limit_of
from dynotune.schema.errors import UsageError
from dynotune.schema.largest import Limit

# Each frame is 10 ms old per stream, whatever the machine does meanwhile.
SERVE = """
import sys, time, dynotune
num = int(sys.argv[1])
while True:
    time.sleep(0.02)
    for number in range(num):
        dynotune.frame_done(number, time.perf_counter() - 0.01 * num)
"""
ENDS = SERVE.replace("while True:", "for _ in range(20):")


@pytest.fixture
def refused(capsys, tmp_path, monkeypatch):
    """What is said about words that are refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def types(*words):
        with pytest.raises(SystemExit) as ended:
            cli.main(["plan", *map(str, words)])
        assert ended.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    return types


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("streams", "--fps", "25", "--", sys.executable, "serve.py"), "no placeholder {streams}"),
        (("streams", "--", sys.executable, "{streams}"), "no limit to hold"),
        (("streams", "--fps", "25", "--deadline", "40", "--", "python", "{streams}"), "has no unit"),
        (("streams", "--fps", "0", "--", "python", "{streams}"), "it takes 0.01 to 10,000"),
        (("streams", "--limit", "speed=1", "--", "python", "{streams}"), "names no quantity"),
        (("streams", "--fps", "25"), "There is no command"),
    ],
)
def test_plan_refuses_words_when_nothing_could_be_searched(refused, words, said):
    assert said in refused(*words)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("latency-p99=40ms", Limit("latency-p99", pytest.approx(0.04))),
        ("memory=20GiB", Limit("memory", 20 * 2.0**30)),
        ("throughput=100/s", Limit("throughput", 100.0)),
        ("energy=2.5J", Limit("energy", 2.5)),
    ],
)
def test_limit_is_read_when_its_unit_fits(text, limit):
    assert limit_of(text) == limit


@pytest.mark.parametrize("text", ["memory", "memory=big", "throughput=0", "throughput=nan", "frame-rate=25"])
def test_limit_is_refused_when_it_has_no_bound(text):
    with pytest.raises(UsageError):
        limit_of(text)


@pytest.mark.parametrize(
    "limits",
    [
        ["--fps", "25", "--window", "1s"],
        pytest.param(["--fps", "25", "--deadline", "35ms", "--window", "6s"], marks=pytest.mark.long),
    ],
)
def test_plan_proves_a_value_when_a_program_marks_its_frames(user, limits):
    user.write("serve.py", SERVE)
    options = [*limits, "--least", "3", "--most", "3"]
    kept = ["--run-dir", str(user.runs), "--no-lock", "--json", "plan.json", "--fail-under", "4"]
    ran = user.types("plan", "streams", *options, *kept, "--", sys.executable, "serve.py", "{streams}")
    assert ran.returncode == 1, ran.stderr
    found = json.loads((user.cwd / "plan.json").read_text())
    assert (found["end"], found["largest"]) == ("ceiling", 3), ran.stdout
    assert {run["serving"]["source"] for run in found["runs"]} == {"marks"}
    measured = {one["quantity"]: one["value"] for one in found["runs"][0]["measured"]}
    assert measured["frame-rate"] > 25
    if "--deadline" in limits:
        assert measured["frame-latency-p99"] >= 0.03
    assert "streams = 3 holds in 2 runs" in " ".join(ran.stdout.split())


def test_plan_says_that_sources_have_to_last_when_the_program_ends_before_a_window(user):
    user.write("serve.py", ENDS)
    kept = ["--run-dir", str(user.runs), "--no-lock"]
    ran = user.types("plan", "streams", "--fps", "25", *kept, "--", sys.executable, "serve.py", "{streams}")
    assert ran.returncode == 3
    said = " ".join(ran.stderr.split())
    assert "before a window of 10 s was over" in said
    assert "Let its sources last longer" in said
