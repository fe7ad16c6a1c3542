"""A search from its ends to its ending: found, not reproducible, among skipped points, not sure, resumed."""

from __future__ import annotations

import random
from unittest import mock

import msgspec
import pytest

from dynotune import bisect
from dynotune.bisect import protocol
from dynotune.bisect.line import NotMade
from dynotune.measure.bench import Interrupted
from dynotune.report import as_text, on_terminal
from dynotune.schema.errors import CannotRunHere, CommandFailed, NoStep
from lab.bisected import planted, simulated


@pytest.mark.parametrize("share", [0.05, 0.10, 0.30])
def test_search_finds_the_planted_step_of_64_in_18_of_20(tmp_path, share):
    right, wrong = 0, 0
    for seed in range(20):
        first_bad = random.Random(f"{share} {seed}").randrange(1, 65)
        found, _ = simulated(tmp_path / str(seed), planted(65, first_bad, share), sd=0.015, seed=seed)
        right += found.ending == "found" and found.first_bad == first_bad
        wrong += found.ending == "found" and found.first_bad != first_bad
    assert right >= 18 and wrong == 0


def test_search_says_not_reproducible_when_nothing_differs(tmp_path):
    endings = [
        simulated(tmp_path / str(seed), planted(65, 1, 0.0), sd=0.015, seed=seed)[0] for seed in range(20)
    ]
    assert sum(found.ending == "not-reproducible" for found in endings) >= 19
    assert endings[0].shown.ci is not None and "Not reproducible here" in endings[0].reason
    assert not endings[0].steps and endings[0].first_bad is None


def test_search_says_so_when_the_bad_end_is_faster(tmp_path):
    found, _ = simulated(tmp_path / "a", planted(65, 9, -0.2), sd=0.01, seed=1)
    assert found.ending == "not-reproducible" and "Exchange --good and --bad" in found.reason


def test_search_names_the_points_between_when_the_command_fails_at_them(tmp_path):
    failing = {20, 21, 22}
    found, _ = simulated(tmp_path / "a", planted(65, 21, 0.2), sd=0.01, seed=3, failing=failing)
    assert (found.ending, found.last_good, found.first_bad) == ("range", 19, 23)
    assert {step.candidate for step in found.steps if step.side == "skipped"} == failing
    assert found.confirmed is None and len(found.changed) == 4


def test_search_finds_the_step_when_points_elsewhere_fail(tmp_path):
    found, _ = simulated(tmp_path / "a", planted(65, 50, 0.2), sd=0.01, seed=3, failing={31, 32, 33})
    assert (found.ending, found.first_bad) == ("found", 50)


@pytest.mark.parametrize("failing", [{0}, {64}])
def test_search_stops_when_the_command_fails_at_an_end(tmp_path, failing):
    with pytest.raises(CommandFailed, match="failed at 0000"):
        simulated(tmp_path / "a", planted(65, 50, 0.2), sd=0.01, seed=3, failing=failing)


def test_search_states_the_size_of_the_step_and_warns_when_other_steps_make_the_rest(tmp_path):
    times = [1.0 if point < 10 else 1.10 if point < 40 else 1.16 for point in range(65)]
    found, _ = simulated(tmp_path / "a", times, sd=0.005, seed=5)
    assert found.first_bad == 10 and found.confirmed.ci[0] < 1 / 1.10 < found.confirmed.ci[1]
    assert "other steps make the rest" in found.warnings[0]


def test_search_is_never_wrong_without_a_warning_when_pairs_are_noisy(tmp_path):
    for seed in range(20):
        found, _ = simulated(tmp_path / str(seed), planted(17, 9, 0.05), sd=0.10, seed=seed, max_pairs=8)
        assert found.ending in ("unsure", "not-reproducible") or found.first_bad == 9


def test_search_has_no_halving_when_the_ends_are_neighbours(tmp_path):
    found, _ = simulated(tmp_path / "a", [1.0, 1.3], sd=0.01, seed=1)
    assert found.ending == "found" and not found.steps and found.confirmed == found.shown


def test_resumed_search_goes_on_after_the_last_comparison(tmp_path):
    times, folder = planted(65, 23, 0.2), tmp_path / "a"
    made = []
    step = protocol._Search._halve

    def stops_at_third(search, point):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(point)
        step(search, point)

    with mock.patch.object(protocol._Search, "_halve", stops_at_third), pytest.raises(Interrupted) as stopped:
        simulated(folder, times, sd=0.01, seed=1)
    assert stopped.value.folder == folder
    found, _ = simulated(folder, times, sd=0.01, seed=2)
    assert [step.candidate for step in found.steps[:2]] == made and found.first_bad == 23
    assert bisect.FILE == "bisection.json"


@pytest.mark.parametrize("error", [NotMade("gone"), NoStep("no step")])
def test_point_is_skipped_when_it_cannot_be_measured_itself(tmp_path, error):
    compared = protocol._Search._compared

    def at_middle(search, name, *points, **more):
        if name == "step-32":
            raise error
        return compared(search, name, *points, **more)

    with mock.patch.object(protocol._Search, "_compared", at_middle):
        found, _ = simulated(tmp_path / "a", planted(65, 23, 0.2), sd=0.01, seed=1)
    assert found.first_bad == 23
    assert [step.reason for step in found.steps if step.side == "skipped"] == [error.message]


def test_search_stops_and_skips_no_point_when_the_machine_is_in_use(tmp_path):
    compared = protocol._Search._compared

    def in_use(search, name, *points, **more):
        if name != "ends":
            raise CannotRunHere("Another measurement is running.")
        return compared(search, name, *points, **more)

    with (
        mock.patch.object(protocol._Search, "_compared", in_use),
        pytest.raises(CannotRunHere, match="Another measurement") as stopped,
    ):
        simulated(tmp_path / "a", planted(65, 23, 0.2), sd=0.01, seed=1)
    assert "--resume" in stopped.value.hint
    found, _ = simulated(tmp_path / "a", planted(65, 23, 0.2), sd=0.01, seed=1)
    assert found.first_bad == 23 and not any(step.side == "skipped" for step in found.steps)


def test_report_says_the_answer_its_size_and_the_bound(tmp_path):
    found, _ = simulated(tmp_path / "a", planted(65, 23, 0.2), sd=0.01, seed=1)
    found = msgspec.structs.replace(found, next_command=["--good", "git.ref=a", "--bad", "git.ref=b"])
    text = " ".join(as_text(on_terminal(found)).split())
    assert "First bad: 000000000000 Change 23" in text and "more than the point before it" in text
    assert "At most 5% of such searches end at a wrong step" in text
    assert "dynotune bisect --good git.ref=a --bad git.ref=b -- simulated" in text
