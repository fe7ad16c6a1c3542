"""A search as a whole, on a bench whose runs are made up: what is kept, resumed, refused and said."""

import sys
from dataclasses import dataclass, field

import pytest

from dynotune.measure.bench import Interrupted
from dynotune.report import as_text, on_terminal
from dynotune.schema import document
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.largest import LargestValue, Limit, Measured, ValueRun
from dynotune.schema.serving import Serving
from dynotune.search import planning

from ..fakes import Watcher, spec


@dataclass
class Machine:
    """Serves up to `most` streams; the values that were run, and what happens at a number of runs."""

    most: int = 6
    values: list[int] = field(default_factory=list)
    raises: dict[int, BaseException] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def bench(self, run, name, limits, *, fps, window_s, folder, facts):
        self.has_run = False
        return self

    def run(self, value, number):
        if number in self.raises:
            raise self.raises.pop(number)
        self.values.append(value)
        rate = 25.0 if value <= self.most else 20.0
        late_s = 0.02 if value <= self.most else 0.2
        measured = [
            Measured(quantity="frame-rate", value=rate, low=rate - 0.1, high=rate + 0.1, worst="a"),
            Measured(quantity="frame-latency-p99", value=late_s, low=late_s, high=late_s, worst="a"),
            Measured(quantity="latency-growth", value=0.0, low=0.0, high=0.0),
        ]
        serving = Serving(
            source="threads",
            num_streams=value,
            frames_per_s=25.0 * value,
            cpu_s=0.01,
            cores=7.9,
            num_cores=2.0,
        )
        return ValueRun(
            value=value,
            run=f"{number:03d}",
            measured=measured,
            serving=serving,
            notes=self.notes,
            wall_s=10.0,
        )


@pytest.fixture
def machine(monkeypatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(planning, "ValueBench", made.bench)
    monkeypatch.setattr(planning, "facts_of", lambda run: {"host.cpu": "made up"})
    return made


def request(tmp_path, *words, **fields):
    command = [sys.executable, "serve.py", *(words or ("{streams}",))]
    run = spec(command=command, cwd=tmp_path, base=tmp_path / "runs", lock=False)
    return planning.PlanRequest(**{"run": run, "name": "streams", "fps": 25.0, "deadline_s": 0.04, **fields})


def test_plan_proves_predicts_and_says_what_binds_when_runs_agree(machine, tmp_path):
    watcher = Watcher()
    folder, found = planning.plan(request(tmp_path), watcher)
    assert (found.end, found.largest, found.refuted, found.binds.name) == ("proved", 6, 7, "cores")
    assert found.prediction == 8
    assert machine.values[:3] == [1, 2, 8]
    assert document.read(folder / planning.FILE, LargestValue) == found
    text = " ".join(as_text(on_terminal(found)).split())
    assert (
        "streams = 6 is proved: 2 runs hold. 7, the next value, is refuted: frames/s 20 in stream a" in text
    )
    assert "the prediction was off by +33%" in text
    assert "What binds at 7: cores." in text
    assert "latency p99 up to 40 ms" in text


def test_plan_goes_on_where_it_was_when_it_was_interrupted(machine, tmp_path):
    machine.raises[3] = KeyboardInterrupt()
    asked = request(tmp_path)
    with pytest.raises(Interrupted) as stopped:
        planning.plan(asked, Watcher())
    values = list(machine.values)
    folder, found = planning.resume(stopped.value.folder, asked.run, Watcher())
    assert (found.end, found.largest) == ("proved", 6)
    assert machine.values[:3] == values
    again = len(machine.values)
    assert planning.resume(folder, asked.run, Watcher())[1] == found
    assert len(machine.values) == again


def test_plan_names_the_runs_that_are_kept_when_the_machine_fails(machine, tmp_path):
    machine.raises[2] = CannotRunHere("The disk is full.")
    with pytest.raises(CannotRunHere, match="disk") as failed:
        planning.plan(request(tmp_path), Watcher())
    assert "dynotune plan streams --resume" in failed.value.hint


def test_plan_says_what_is_proved_so_far_when_its_time_is_over(machine, tmp_path):
    _, found = planning.plan(request(tmp_path), Watcher(), budget_s=5.0)
    assert (found.end, found.largest, machine.values) == ("budget", None, [1])
    assert "nothing is proved" in as_text(on_terminal(found))


@pytest.mark.parametrize(
    ("most", "end", "words"),
    [
        (0, "none", "Not even streams = 1 holds"),
        (100, "ceiling", "The largest value that holds is not known: raise --most to try larger values."),
    ],
)
def test_plan_says_so_when_no_value_holds_or_all_do(machine, tmp_path, most, end, words):
    machine.most, machine.notes = most, ["Stream a gave no frame in the last 4.0 s."]
    _, found = planning.plan(request(tmp_path, most=20), Watcher())
    assert found.end == end
    text = " ".join(as_text(on_terminal(found)).split())
    assert words in text
    assert "Stream a gave no frame" in text


@pytest.mark.parametrize(
    ("words", "fields", "said"),
    [
        (("--cameras", "4"), {}, "no placeholder {streams}"),
        ((), {"fps": None, "deadline_s": None}, "no limit to hold"),
        ((), {"fps": None}, "needs the frames' rate"),
        ((), {"limits": [Limit("memory", 1.0), Limit("memory", 2.0)]}, "given twice"),
        ((), {"least": 5, "most": 4}, "not a range to search in"),
        ((), {"most": 10**9}, "not a range to search in"),
        ((), {"fps": -1.0}, "The rate is -1"),
        ((), {"fps": 0.0}, "The rate is 0"),
        ((), {"fps": float("nan")}, "The rate is nan"),
        ((), {"fps": float("inf")}, "The rate is inf"),
        ((), {"window_s": 0.0}, "The window is 0"),
        ((), {"deadline_s": float("nan")}, "The deadline is nan"),
        ((), {"limits": [Limit("memory", -1.0)]}, "The limit of memory is -1"),
        ((), {"fps": 1.0, "window_s": 10.0}, "10 frames of a stream: too few"),
        ((), {"fps": 0.2, "window_s": 10.0, "deadline_s": None}, "2 frames of a stream: too few"),
        ((), {"window_s": 5.9}, "does not show whether latency grows"),
    ],
)
def test_plan_is_refused_before_anything_runs_when_the_request_does_not_fit(
    machine, tmp_path, words, fields, said
):
    with pytest.raises(UsageError, match=said):
        planning.plan(request(tmp_path, *words, **fields), Watcher())
    assert not machine.values


@pytest.mark.parametrize(
    ("fps", "window_s", "least"), [(25.0, 10.0, 24.75), (5.0, 4.0, 4.5), (25.0, 4.0, 24.5)]
)
def test_rate_allows_for_clocks_and_a_frame_at_each_end_when_windows_are_short(
    tmp_path, fps, window_s, least
):
    (limit,) = request(tmp_path, fps=fps, window_s=window_s, deadline_s=None).all_limits()
    assert limit == Limit("frame-rate", pytest.approx(least))


def test_deadline_is_a_limit_of_latency_and_of_its_growth(tmp_path):
    limits = request(tmp_path).all_limits()
    assert [limit.quantity for limit in limits] == ["frame-rate", "frame-latency-p99", "latency-growth"]


def test_plan_says_so_when_the_time_given_to_go_on_is_shorter_than_a_run(machine, tmp_path):
    asked = request(tmp_path)
    folder, _ = planning.plan(asked, Watcher(), budget_s=5.0)
    watcher = Watcher()
    _, found = planning.resume(folder, asked.run, watcher, budget_s=5.0)
    assert (found.end, machine.values) == ("budget", [1])
    assert any("a run took 10 s, and --budget is 5 s" in text for text in watcher.warned)


def test_plan_refuses_an_energy_limit_before_anything_runs_when_there_is_no_gpu(
    machine, tmp_path, monkeypatch
):
    monkeypatch.setattr("dynotune.probe.nvml.visible_gpus", lambda env: [])
    with pytest.raises(CannotRunHere, match="needs a GPU"):
        planning.plan(request(tmp_path, limits=[Limit("energy", 2.0)]), Watcher())
    assert not machine.values
