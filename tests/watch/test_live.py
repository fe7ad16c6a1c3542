"""`dynotune watch` on real programs whose bottleneck changes under it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import msgspec
import pytest

from ..cli.conftest import until
from .conftest import PROGRAM

RANKS = """
import os, sys, time, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
class Data(Dataset):
    def __init__(self, rank):
        self.rank = rank
    def __len__(self):
        return 100_000
    def __getitem__(self, at):
        time.sleep(0.02 * self.rank)
        return torch.ones(4)
def train(rank):
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + ".store", rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for x in DataLoader(Data(rank), batch_size=2):
        net(x).mean().backward()
        ended = torch.tensor(float("end" in open(sys.argv[1]).read()))
        dist.all_reduce(ended)  # all leave after the same step
        if ended:
            dist.destroy_process_group()
            os._exit(0)
if __name__ == "__main__":
    mp.start_processes(train, nprocs=2, start_method="fork")
"""


@pytest.mark.long
def test_the_sentence_changes_with_the_bottleneck_and_names_the_step(watch):
    watched = watch(first="compute=0.02")
    first = watched.until(
        lambda view: view["cause"] in ("cpu", "waiting") and view["num_steps"] > 200, "clean steps"
    )
    assert first["steps_s"][0]["input_share"] < 0.25
    watched.does("input=0.02")
    changed = watched.until(lambda view: view["cause"] == "input" and view.get("since_step"), "the change")
    assert changed["verdict"].startswith("Input-bound: the loader lets each step wait")
    assert "the program makes its batches itself" in changed["verdict"]
    assert f"Since step {changed['since_step']:,}; before, steps waited" in changed["verdict"]
    assert any(mark["kind"] == "bottleneck" for mark in changed["marks"])
    alert = watched.until_alert("input-bound")
    assert "of the last minute for input" in alert["text"]
    watched.does("compute=0.02")
    watched.until(lambda view: view["cause"] in ("cpu", "waiting"), "the first cause again")
    code, out = watched.ends()
    assert (code, out) == (0, "done\n")
    log = (watched.folder / "watch.log").read_text()
    assert "ALERT input-bound" in log
    assert "The program has ended with exit code 0" in log
    run = msgspec.json.decode((watched.folder / "run.json").read_bytes())
    assert run["exit_code"] == 0
    assert run["processes"][0]["num_steps"] == watched_steps(log)


def watched_steps(log: str) -> int:
    return int(log.rsplit("after ", 1)[1].split(" steps")[0].replace(",", ""))


@pytest.mark.long
def test_a_stall_says_what_its_threads_wait_for_and_ends_with_one(watch, user):
    tells = "cat > told-$DYNOTUNE_ALERT.json"
    watched = watch("--fail-on", "stalled:1s", "--on-alert", tells, first="compute=0.02")
    watched.until(lambda view: view["num_steps"] > 20, "steps")
    watched.does("stall=1")
    alert = watched.until_alert("stalled")
    assert "and no process computes" in alert["text"]
    assert any(
        re.match(r"rank 0, thread 1: program.py\(\d+\): <module>$", line) for line in alert["details"]
    ), alert
    watched.process.communicate(timeout=120)
    assert watched.process.returncode == 1
    assert "ending the command: stalled" in (user.cwd / "stderr").read_text()
    assert "ALERT stalled: No step for" in (watched.folder / "watch.log").read_text()
    told = msgspec.json.decode((user.cwd / "told-stalled.json").read_bytes())
    assert told["id"] == "stalled"
    assert told["text"].startswith("No step for")


@pytest.mark.long
def test_a_stalled_program_that_ignores_the_signal_is_killed(watch):
    program = PROGRAM.replace("kept, did", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nkept, did")
    watched = watch("--fail-on", "stalled:1s", first="compute=0.02", program=program)
    watched.until(lambda view: view["num_steps"] > 20, "steps")
    watched.does("stall=1")
    watched.process.communicate(timeout=120)
    assert watched.process.returncode == 1
    run = msgspec.json.decode((watched.folder / "run.json").read_bytes())
    assert run["exit_code"] == -signal.SIGKILL


@pytest.mark.long
def test_a_worker_that_is_stopped_is_named(watch):
    watched = watch(first="compute=0.01", workers=2)
    view = watched.until(lambda view: view["num_steps"] > 50 and _workers(view), "workers")
    assert all(row["role"] == "worker of program" for row in _workers(view))
    stopped = _workers(view)[0]["pid"]
    os.kill(stopped, signal.SIGSTOP)
    alert = watched.until_alert("stalled")
    assert f"worker of program ({stopped}): stopped" in alert["details"]
    os.kill(stopped, signal.SIGCONT)
    watched.until(lambda view: not view["alerts"], "the end of the alert")
    assert watched.ends()[0] == 0


def _workers(view):
    return [row for row in view["processes"] if row["is_worker"]]


@pytest.mark.long
def test_a_worker_that_dies_ends_the_program_as_without_dynotune(watch):
    watched = watch(first="compute=0.01", workers=2)
    view = watched.until(lambda view: view["num_steps"] > 20 and _workers(view), "workers")
    os.kill(_workers(view)[0]["pid"], signal.SIGKILL)
    watched.process.communicate(timeout=120)
    assert watched.process.returncode == 1
    assert "The program has ended with exit code 1" in (watched.folder / "watch.log").read_text()


@pytest.mark.long
def test_settings_apply_as_with_run(watch):
    watched = watch("--set", "loader.num_workers=2", first="compute=0.02")
    watched.until(lambda view: len(_workers(view)) == 2, "the workers")
    assert watched.ends()[0] == 0
    run = msgspec.json.decode((watched.folder / "run.json").read_bytes())
    assert [(each["knob"], each["ok"]) for each in run["readback"]] == [("loader.num_workers", True)]


@pytest.mark.long
def test_a_long_step_is_marked_as_a_pause(watch):
    watched = watch(first="compute=0.01")
    watched.until(lambda view: view["num_steps"] > 20, "steps")
    watched.does("compute=0.01 pause=1")
    watched.until(lambda view: any(mark["kind"] == "pause" for mark in view["marks"]), "the pause")
    assert watched.ends()[0] == 0


@pytest.mark.long
def test_memory_that_leaks_is_said_with_the_step_at_which_it_ends(watch):
    watched = watch(first="compute=0.02 leak=1000000")
    alert = watched.until_alert("memory-growth")
    assert "at about step" in alert["text"]
    assert watched.ends()[0] == 0


@pytest.mark.long
def test_a_rank_that_is_late_with_its_input_is_named(watch):
    watched = watch(program=RANKS)
    alert = watched.until_alert("rank-lag")
    assert alert["whose"] == "1"
    assert "longer for input" in alert["text"]
    view = watched.view()
    assert [each["rank"] for each in view["steps_s"]] == ["0", "1"]
    assert watched.ends()[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_dies_by_the_signal_that_dynotune_got_and_dynotune_by_the_same(watch, number):
    watched = watch(first="compute=0.02")
    watched.until(lambda view: view["num_steps"] > 5, "steps")
    watched.process.send_signal(number)
    watched.process.communicate(timeout=120)
    assert watched.process.returncode in (-number, 1 if number == signal.SIGINT else -number)


def test_output_and_exit_code_are_the_commands_own(user):
    user.write("talk.py", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
    done = user.types("watch", "--run-dir", str(user.runs), "--", sys.executable, "talk.py")
    assert (done.returncode, done.stdout) == (7, "out\n")
    said = done.stderr.splitlines()
    assert said[0].startswith("dynotune: watching: ")
    assert said[1:] == ["err"]


@pytest.mark.long
def test_another_terminal_joins_a_run_that_run_started_and_two_may(user):
    program = user.write("train.py", PROGRAM_WITHOUT_CONTROL)
    control = user.write("control", "")
    with user.start(
        "run", "--run-dir", str(user.runs), "--", sys.executable, str(program), str(control)
    ) as running:
        until(lambda: list(user.runs.glob("*/process-*.rec")), "the run's record")
        (folder,) = user.runs.iterdir()
        joined = [user.start("watch", str(folder), stdout=subprocess.PIPE) for _ in range(2)]
        for each in joined:
            lines = iter(each.stdout.readline, "")
            assert any(re.search(r"  step \d", line) for line in lines)
        control.write_text("end")
        for each in joined:
            out, _ = each.communicate(timeout=120)
            assert each.returncode == 0
            assert "The program has ended with exit code 0" in out
        running.communicate(timeout=120)
    assert {path.suffix for path in folder.iterdir()} <= {".json", ".rec"}


def test_a_terminal_is_given_a_screen_and_left_as_it_was(user):
    ours, its = os.openpty()
    ran = user.types("run", "--run-dir", str(user.runs), "--", sys.executable, "-c", "import time")
    assert ran.returncode == 0
    (folder,) = user.runs.iterdir()
    with user.start("watch", str(folder), stdout=its) as joined:
        os.close(its)
        shown = b"".join(iter(lambda: read(ours), b"")).decode()
        assert joined.wait(timeout=120) == 0
    os.close(ours)
    screen, _, after = shown.partition("\x1b[?1049l")
    assert "\x1b[?1049h" in screen
    assert "The program has ended with exit code 0" in " ".join(screen.split())
    assert "The program has ended with exit code 0" in " ".join(after.split())


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # nobody writes to it any more
        return b""


PROGRAM_WITHOUT_CONTROL = """
import sys, time, torch
net = torch.nn.Linear(8, 1)
while "end" not in open(sys.argv[1]).read():
    net(torch.ones(2, 8)).sum().backward()
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "by its command, its folder or a process id"),
        (("nowhere",), 3, "is not the folder of a run"),
        (("--fail-on", "stalled", "--", "true"), 2, "is not ALERT:TIME"),
        (("--fail-on", "nonsense:5m", "--", "true"), 2, "is not ALERT:TIME"),
        (("--fail-on", "stalled:5", "--", "true"), 2, "has no unit"),
        (("--serve", "nonsense", "--", "true"), 2, "is no address"),
        (("--serve", "0.0.0.0:0", "--", "true"), 2, "no token"),
        (("--set", "loader.num_workers=2", "here"), 2, "this run has already begun"),
        (("here", "--", "true"), 2, "by its command, its folder or a process id"),
        (("here", "--pid", "4194305"), 2, "by its command, its folder or a process id"),
        (("--pid", "4194305"), 3, "There is no process 4194305"),
        (("--pid", "4194305", "--step-function", "m:f"), 2, "--step-function needs a command"),
        (("--pid", "4194305", "--set", "loader.num_workers=2"), 2, "this run has already begun"),
    ],
)
def test_watch_says_why_and_what_next_when_a_folder_cannot_be_watched(user, words, code, said):
    (user.cwd / "here").mkdir()
    done = user.types("watch", *(["--run-dir", str(user.runs)] if "--" in words else []), *words)
    assert done.returncode == code, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "next:" in done.stderr


@pytest.mark.long
def test_a_program_that_never_steps_is_said_so(watch):
    watched = watch(
        program="import sys, time\nwhile 'end' not in open(sys.argv[1]).read():\n    time.sleep(0.05)\n"
    )
    view = watched.until(lambda view: view["state"] == "starting", "a view")
    assert view["verdict"].startswith("No step yet")
    assert watched.ends()[0] == 0
