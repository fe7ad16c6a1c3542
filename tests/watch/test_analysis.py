"""Causes, changes and alerts, concluded from the store of simulated runs."""

from __future__ import annotations

import random

import pytest

from dynotune.schema.watch import GpuView, ProcessView
from dynotune.watch import analysis
from dynotune.watch.analysis import Analysis, Look
from dynotune.watch.store import Store

BEGUN_S = 1000.0
GIB = 1 << 30


class Simulated:
    """A run whose steps are given second by second; it looks as the watcher does."""

    def __init__(self) -> None:
        self.store, self.now, self.num = Store(), BEGUN_S, {}
        self.analysis = Analysis()
        self.alerted: list[tuple[float, str]] = []
        self.gpus: list[GpuView] = []
        self.rows: list[ProcessView] = []
        self.random = random.Random(0)

    def runs(
        self,
        length_s,
        *,
        step_s=0.01,
        wait=0.02,
        ranks=("0",),
        noise=0.05,
        device=None,
        cores=1.0,
        rss=GIB,
        slow=None,
    ):
        """`slow`: of a rank, the factors of its step and of its wait. `rss`: bytes, or bytes by time."""
        begun_s = self.now
        while self.now < begun_s + length_s:
            for rank in ranks:
                factor, more_s = (slow or {}).get(rank, (1.0, 0.0))
                at = self.now
                while at < self.now + 1.0:
                    took_s = step_s * factor * (1 + noise * self.random.random())
                    at += took_s
                    self.num[rank] = self.num.get(rank, 0) + 1
                    self.store.add("step", rank, at, took_s, self.num[rank])
                    self.store.add("wait", rank, at, min(took_s, wait * took_s + more_s), self.num[rank])
            self._idles(1.0, device, cores, rss(self.now - begun_s) if callable(rss) else rss)
        return self

    def stands(self, length_s, *, cores=0.0, device=None):
        """No step ends."""
        for _ in range(int(length_s)):
            self._idles(1.0, device, cores, GIB)
        return self

    def _idles(self, length_s, device, cores, rss):
        self.now += length_s
        self.store.add("cores", "", self.now, cores)
        self.store.add("others", "", self.now, 0.0)
        self.store.add("rss", "", self.now, rss)
        if device is not None:
            self.store.add("gpu.kernel_running_percent", "0", self.now, device)
        self.moment, found, self.change = self.analysis.judge(self.look())
        self.alerted += [(self.now, alert.id) for alert in found]
        self.found = {alert.id: alert for alert in found}

    def look(self):
        step = max(self.num.values(), default=0)
        return Look(self.now, BEGUN_S, self.store, self.gpus, self.rows, 20 * GIB, 8, step)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ({"wait": 0.5}, "input"),
        ({"wait": 0.02, "device": 95}, "device"),
        ({"wait": 0.5, "device": 95}, "device"),
        ({"wait": 0.5, "device": 40}, "input"),
        ({"wait": 0.02, "device": 40}, "host"),
        ({"wait": 0.02, "cores": 6.0}, "cpu"),
        ({"wait": 0.02, "cores": 0.1}, "waiting"),
    ],
)
def test_the_cause_is_what_the_last_seconds_waited_for(how, cause):
    run = Simulated().runs(15, **how)
    assert run.moment.cause == cause
    assert analysis.sentence(run.look(), run.moment)


def test_a_share_that_varies_about_its_bound_is_no_change():
    run = Simulated().runs(60, wait=0.35)
    for wait in (0.22, 0.3, 0.2, 0.27) * 6:
        run.runs(10, wait=wait)
        assert (run.moment.cause, run.change) == ("input", None)
    run.runs(30, wait=0.05)
    assert run.moment.cause == "cpu"


@pytest.mark.parametrize("num_epochs", [3, pytest.param(12, marks=pytest.mark.long)])
def test_an_hour_of_a_clean_run_has_no_alert(num_epochs):
    run = Simulated()
    for epoch in range(num_epochs):
        run.runs(280, noise=0.3, device=80 + epoch % 3, rss=GIB + (epoch % 2) * (100 << 20))
        run.stands(15, cores=4.0, device=60)  # a validation
        run.runs(5, step_s=0.03, wait=0.5, device=40)  # workers start
    assert run.alerted == []


def test_a_loader_that_becomes_slow_is_said_within_fifteen_seconds_with_its_step():
    run = Simulated().runs(120)
    changed_at = run.num["0"]
    run.runs(15, step_s=0.02, wait=0.6)
    assert abs(run.change.step - changed_at) <= 110
    assert (run.change.before.cause, run.moment.cause) == ("cpu", "input")
    assert "the wait for input grew" in run.found["throughput-drop"].text


def test_a_minute_of_waiting_for_input_is_an_alert_and_less_is_none():
    run = Simulated().runs(50, wait=0.5)
    assert "input-bound" not in run.found
    run.runs(15, wait=0.5)
    assert "input-bound" in run.found
    run.runs(70)
    assert "input-bound" not in run.found


def test_throughput_below_its_own_past_is_said_until_it_is_as_before():
    run = Simulated().runs(120, device=90)
    run.runs(15, step_s=0.0125, device=70)
    assert (
        "20% less throughput" in run.found["throughput-drop"].text
        or "19%" in run.found["throughput-drop"].text
    )
    assert "the host does more" in run.found["throughput-drop"].text
    run.runs(240, step_s=0.0125, device=70)
    assert "throughput-drop" in run.found
    run.runs(20, device=90)
    assert "throughput-drop" not in run.found


def test_sentence_names_other_programs_first_when_they_take_the_cores():
    run = Simulated().runs(20, wait=0.4)
    assert not analysis.sentence(run.look(), run.moment).startswith("Other programs")
    for _ in range(15):
        run.store.add("others", "", run.now + 1, 15.2)  # the mean of it and of none
        run.runs(1, wait=0.4, cores=0.4)
    said = analysis.sentence(run.look(), run.moment)
    assert said.startswith("Other programs take 7.") and "of 8 cores, so steps are slow. Input-bound" in said


def test_a_host_that_computes_more_is_told_from_others_that_take_its_cores():
    run = Simulated().runs(120, cores=0.6)
    run.runs(15, step_s=0.02, cores=1.6)
    assert "the program itself uses 1.6 of 8 cores, 0.6 before" in run.found["throughput-drop"].text
    run = Simulated().runs(120)
    for _ in range(15):
        run.store.add("others", "", run.now + 1, 8.0)
        run.runs(1, step_s=0.02)
    assert "other processes use" in run.found["throughput-drop"].text
    assert "itself" not in run.found["throughput-drop"].text


def test_a_pause_of_a_few_seconds_is_no_drop_of_throughput():
    run = Simulated().runs(120)
    run.stands(9, cores=4.0)
    run.runs(30)
    assert run.alerted == []


def test_steps_of_several_seconds_are_judged_as_well():
    run = Simulated().runs(600, step_s=3.0)
    assert run.alerted == []
    run.runs(60, step_s=4.0)
    assert "throughput-drop" in run.found


def test_memory_that_grows_towards_its_limit_names_the_step():
    run = Simulated().runs(40)
    begun = run.num["0"]
    run.runs(16, rss=lambda s: GIB + s * (100 << 20))
    text = run.found["memory-growth"].text
    step = int(text.rsplit("step ", 1)[1].rstrip(".").replace(",", ""))
    # 20 GiB at 100 MiB/s are 205 s, and a step takes 10 ms.
    assert begun + 15_000 < step < begun + 27_000


def test_memory_that_grows_and_stays_is_no_alert():
    run = Simulated().runs(40)
    run.runs(10, rss=lambda s: GIB + s * (30 << 20)).runs(60, rss=GIB + (300 << 20))
    run.runs(60, rss=lambda s: GIB + (300 << 20) + (s % 10) * (5 << 20))
    assert run.alerted == []


def test_a_rank_that_waits_longer_for_input_lags_though_all_steps_are_equally_long():
    run = Simulated().runs(30, ranks=("0", "1", "2"), slow={"1": (1.0, 0.005)})
    assert run.found["rank-lag"].whose == "1"
    assert "input" in run.found["rank-lag"].text


def test_a_rank_whose_steps_are_longer_lags():
    run = Simulated().runs(30, ranks=("0", "1", "2"), slow={"2": (1.5, 0.0)})
    assert [run.found["rank-lag"].whose] == ["2"]


def test_a_quiet_stall_is_said_within_fifteen_seconds_and_a_busy_one_only_after_minutes():
    run = Simulated().runs(60)
    run.stands(14)
    assert "stalled" in run.found
    busy = Simulated().runs(60, device=90)
    busy.stands(60, cores=2.0, device=90)
    assert "stalled" not in busy.found
    busy.stands(260, cores=2.0, device=90)
    assert "stalled" in busy.found


def worker(pid: int, cores: float, at_disk_share: float, run: Simulated, state: str = "sleeping") -> None:
    fixed = {"role": "worker of program", "is_worker": True, "num_threads": 1, "rss_bytes": 1, "state": state}
    run.rows.append(ProcessView(pid=pid, cores=cores, at_disk_share=at_disk_share, **fixed))


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ([(0.1, 0.9), (0.1, 0.4), (0.9, 0.0)], "2 of 3 workers are at their disk"),
        ([(0.95, 0.0)] * 2, "all 2 workers compute all the time"),
        ([(0.0, 0.0), (0.9, 0.0)], "1 of 2 workers sleep or wait, without using a CPU"),
    ],
)
def test_the_loader_is_late_for_what_its_workers_do(states, reason):
    run = Simulated().runs(15, wait=0.5)
    for pid, (cores, at_disk_share) in enumerate(states):
        worker(pid, cores, at_disk_share, run)
    assert analysis.loader_reason(run.look()) == reason


def test_a_process_that_was_stopped_is_said_within_seconds_of_the_last_step():
    run = Simulated().runs(120)
    worker(7, 0.0, 0.0, run, "stopped")
    run.runs(20)  # its work is in the queue still
    assert "stalled" not in run.found
    run.stands(5)
    assert "is stopped" in run.found["stalled"].text
    assert run.moment.cause == "stalled"


def test_a_gpu_that_others_use_is_named():
    run = Simulated().runs(20, device=95)
    fields = dict.fromkeys(
        [name for name in GpuView.__struct_fields__ if name not in ("clock_limits", "others")], 1
    )
    run.gpus = [GpuView(**fields, clock_limits=["hw-thermal"], others=["python (77), 40% of the time"])]
    run.runs(1, device=95)
    assert "python (77)" in run.found["device-shared"].text
    assert "hw-thermal" in analysis.sentence(run.look(), run.moment)


def test_the_first_few_uneven_steps_of_ranks_are_no_lag():
    run = Simulated()
    for rank, took_s in (("0", 0.09), ("1", 0.05)):
        for at in range(4):
            run.store.add("step", rank, run.now + at * took_s, took_s, at)
            run.store.add("wait", rank, run.now + at * took_s, 0.0, at)
    run.stands(1)
    assert "rank-lag" not in run.found
