"""What others take of the cores, from a /proc that is made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dynotune.probe.sampling import interference as module
from dynotune.probe.sampling.interference import neighbours

TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """A /proc in which time passes where the look sleeps."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s = root, 100.0
        self.busy = {0: 0.0, 1: 0.0, 2: 0.0}
        self.cpu_s = {7: ("train) (er", 0.0), 8: ("editor", 0.0), os.getpid(): ("us", 0.0)}
        self.uses = {7: 0.75, 8: 0.25, os.getpid(): 0.5}
        self.write()

    def write(self) -> None:
        lines = [f"cpu{cpu} {round(busy * TICKS)} 0 0 1000 0 0 0 0 0 0" for cpu, busy in self.busy.items()]
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc" / "stat").write_text(
            "cpu 1 2 3 4 5 6 7 8 9 10\n" + "\n".join(lines) + "\nintr 0\n"
        )
        for pid, (name, cpu_s) in self.cpu_s.items():
            (self.root / "proc" / str(pid)).mkdir(exist_ok=True)
            rest = ["S", *["0"] * 10, str(round(cpu_s * TICKS)), "0", *["0"] * 30]
            (self.root / "proc" / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(rest)}\n")

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.busy = {0: self.busy[0] + seconds, 1: self.busy[1] + seconds / 2, 2: self.busy[2] + seconds}
        self.cpu_s = {
            pid: (name, cpu_s + self.uses.get(pid, 0) * seconds) for pid, (name, cpu_s) in self.cpu_s.items()
        }
        self.cpu_s[99] = ("new", 50.0)
        self.write()


@pytest.fixture
def proc(tmp_path, monkeypatch):
    made = Proc(tmp_path)
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_work_on_our_cores_is_counted_and_who_does_most_of_it_named(proc):
    found = neighbours({0, 1}, root=proc.root, look_s=4.0)
    assert found is not None
    assert found.num_cores == pytest.approx(1.5)
    # Neither ourselves, nor one that was not there before.
    assert (found.pid, found.name) == (7, "train) (er")
    assert found.most_cores == pytest.approx(0.75)


def test_a_kernel_that_does_not_say_is_unknown_and_not_quiet(proc):
    assert neighbours({0, 5}, root=proc.root) is None
    (proc.root / "proc" / "stat").unlink()
    proc.write = lambda: None
    assert neighbours({0}, root=proc.root) is None


def test_processes_that_cannot_be_seen_leave_the_number_of_cores(proc):
    for pid in (7, 8, os.getpid()):
        (proc.root / "proc" / str(pid) / "stat").unlink()
    proc.cpu_s = {}
    found = neighbours({0}, root=proc.root, look_s=4.0)
    assert found is not None
    assert (found.pid, found.name, found.most_cores) == (0, "", 0.0)
    assert found.num_cores == pytest.approx(1.0)
