"""Starts against a kept record: a planted change is found, and none is where nothing changed."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

from dynotune.measure.startup import against
from dynotune.report import as_text, on_terminal
from dynotune.schema import redaction
from dynotune.schema.errors import UsageError
from dynotune.schema.run import RunSpec
from dynotune.schema.startup import Start, StartBlock, Startup


def record(folder, num, *, cold_s=20.0, warm_s=5.0, sd=0.0, seed=0, facts=None):
    draw = random.Random(seed)

    def start(arm, value_s):
        return Start(arm=arm, run="r", value_s=value_s * math.exp(draw.gauss(0, sd)), phases={})

    blocks = [
        StartBlock([start("cold", cold_s), start("warm", warm_s), start("off", cold_s)]) for _ in range(num)
    ]
    run = RunSpec(command=["python", "train.py"], cwd=folder, env={}, base=folder)
    return Startup(id="s", run=run, blocks=blocks, facts=facts or {})


def verdicts(before, now):
    return {change.arm: change.verdict for change in against.changes(before, now)}


def test_planted_tenth_is_found_in_nine_of_ten_and_nothing_in_twenty_equals(tmp_path):
    found = equal = 0
    for seed in range(20):
        before = record(tmp_path, 6, sd=0.02, seed=seed)
        found += (
            "slower" in verdicts(before, record(tmp_path, 4, cold_s=22.0, sd=0.02, seed=seed + 100)).values()
        )
        equal += "slower" in verdicts(before, record(tmp_path, 4, sd=0.02, seed=seed + 200)).values()
    assert found >= 18 and equal == 0


@pytest.mark.parametrize(("factor", "verdict"), [(1.2, "slower"), (0.8, "faster"), (1.0, "same")])
def test_change_has_a_verdict_and_an_interval_for_each_state(tmp_path, factor, verdict):
    before, now = (record(tmp_path, 5, cold_s=each * 20, sd=0.005, seed=3) for each in (1, factor))
    cold, warm = against.changes(before, now)
    assert (cold.verdict, warm.verdict) == (verdict, "same")
    assert cold.ci[0] < factor < cold.ci[1] and (cold.num_before, cold.num_now) == (5, 5)


def test_small_change_is_not_called_slower_when_it_is_within_the_margin(tmp_path):
    before, now = (record(tmp_path, 6, cold_s=each, sd=0.001, seed=3) for each in (20, 20.6))
    assert verdicts(before, now)["cold"] in ("same", "undecided")


def test_change_is_undecided_when_there_are_too_few_starts(tmp_path):
    (cold, _) = against.changes(record(tmp_path, 1), record(tmp_path, 2))
    assert cold.verdict == "undecided" and cold.ci is None and "--blocks 4" in cold.reason


def sessions_called_slower(folder, *, session_sd, margin, num=120):
    """Return the share of gates over equal starts that say slower, where each record's session has a mean of
    its own."""
    draw, found = random.Random(1), 0
    for seed in range(num):
        mean, other = (math.exp(draw.gauss(0, session_sd)) for _ in range(2))
        before = record(folder, 6, cold_s=20 * mean, warm_s=5 * mean, sd=0.01, seed=seed)
        now = record(folder, 4, cold_s=20 * other, warm_s=5 * other, sd=0.01, seed=seed + 1000)
        found += "slower" in verdicts(before, msgspec.structs.replace(now, margin=margin)).values()
    return found / num


def test_equal_starts_are_rarely_called_slower_when_only_starts_differ(tmp_path):
    assert sessions_called_slower(tmp_path, session_sd=0.0, margin=0.0) <= 0.05


def test_equal_starts_are_called_slower_by_sessions_unless_the_margin_allows_for_them(tmp_path):
    assert 0.06 < sessions_called_slower(tmp_path, session_sd=0.03, margin=0.05) < 0.2
    assert sessions_called_slower(tmp_path, session_sd=0.03, margin=0.15) <= 0.01


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"command": ["python", "serve.py"]}, "of another command"), ({"ready_pattern": "up"}, "another line")],
)
def test_record_is_refused_when_it_is_of_other_starts(tmp_path, changed, said):
    before = record(tmp_path, 4)
    against.refuse_another(before, before.run)
    secret = msgspec.structs.replace(before.run, command=["python", "--api-key=0123456789abcdef"])
    kept = msgspec.structs.replace(
        before, run=msgspec.structs.replace(secret, command=redaction.words(secret.command))
    )
    against.refuse_another(kept, secret)
    with pytest.raises(UsageError, match=said):
        against.refuse_another(before, msgspec.structs.replace(before.run, **changed))


def test_notes_say_that_the_record_is_of_another_machine(tmp_path):
    before = record(tmp_path, 1, facts={"gpu.name": "A", "host.cpu": "x"})
    now = record(tmp_path, 1, facts={"gpu.name": "B", "host.cpu": "x"})
    assert against.machine_notes(before, now) == [
        "The kept record is of another machine: GPU A there, B here."
    ]


def test_report_shows_how_starts_changed(tmp_path):
    before, now = record(tmp_path, 5, sd=0.005), record(tmp_path, 4, cold_s=25, sd=0.005)
    now = msgspec.structs.replace(now, changes=against.changes(before, now))
    text = " ".join(as_text(on_terminal(now)).split())
    assert "cold since" in text and "slower, 4 starts now, 5 in the kept record" in text
