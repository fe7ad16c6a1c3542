"""Watching a real program in a real process, whose bottleneck a file chooses while it runs."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ..cli.conftest import User, until, user

__all__ = ["user"]

# Steps of a sleep's length, from a loader of a chosen cost; what the file says is done in the next step.
PROGRAM = """
import signal, sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
def asked():
    with open(sys.argv[1]) as file:
        return dict(word.split("=") for word in file.read().split())
class Data(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, at):
        time.sleep(float(asked().get("input", 0)))
        return torch.ones(8)
net = torch.nn.Linear(8, 1)
kept, did = [], ""
def once(what):
    global did
    did, before = what, did
    return what and what != before
for x in DataLoader(Data(), batch_size=2, num_workers=int(sys.argv[2])):
    now = asked()
    net(x).sum().backward()
    net.zero_grad()
    if once(now.get("pause", "")):
        time.sleep(1)
    time.sleep(float(now.get("compute", 0)))
    kept.append(b"x" * int(now.get("leak", 0)))
    while "stall" in asked():
        time.sleep(0.1)
    if "end" in now:
        print("done")
        sys.exit(int(now["end"]))
"""


class Watched:
    """A program under `dynotune watch --serve`, and what the server says of it."""

    def __init__(
        self, user: User, *options: str, workers: int = 0, program: str = PROGRAM, first: str = ""
    ) -> None:
        self.user, self._control = user, user.write("control", first)
        user.write("program.py", program)
        command = [sys.executable, "program.py", str(self._control), str(workers)]
        words = ["--run-dir", str(user.runs), "--serve", "127.0.0.1:0", *options, "--", *command]
        self.errors = (user.cwd / "stderr").open("w+")
        self.process = user.start("watch", *words, stderr=self.errors)
        self.url: str = until(lambda: self._said(r"serving (\S+)"), "the server's address")
        self.place, _, self.token = self.url.partition("?token=")

    def _said(self, pattern: str) -> Any:
        found = re.search(pattern, Path(self.errors.name).read_text())
        return found and found[1]

    def does(self, what: str) -> None:
        """Have the program do that from its next step on."""
        new = self._control.with_suffix(".new")
        new.write_text(what)
        new.rename(self._control)

    def get(self, path: str, **headers: str) -> bytes:
        request = urllib.request.Request(
            self.place + path, headers={"Authorization": f"Bearer {self.token}", **headers}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()

    def view(self) -> dict[str, Any]:
        return msgspec.json.decode(self.get("view.json"))

    def until(self, right: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """The first view that is right."""
        return until(lambda: (view := self.view()).get("verdict") and right(view) and view, what)

    def until_alert(self, id_: str) -> dict[str, Any]:
        view = self.until(
            lambda view: any(alert["id"] == id_ for alert in view["alerts"]), f"the alert {id_}"
        )
        return next(alert for alert in view["alerts"] if alert["id"] == id_)

    def ends(self, code: int = 0) -> tuple[int, str]:
        """Exit code and output of dynotune, after the program was asked to end with `code`."""
        self.does(f"end={code}")
        out, _ = self.process.communicate(timeout=120)
        return self.process.returncode, out

    @property
    def folder(self) -> Path:
        (found,) = self.user.runs.iterdir()
        return found


@pytest.fixture
def watch(user: User) -> Iterator[Callable[..., Watched]]:
    with contextlib.ExitStack() as stack:

        def start(*options: str, **more: Any) -> Watched:
            watched = Watched(user, *options, **more)
            stack.callback(watched.errors.close)
            stack.callback(_end, watched.process)
            return watched

        yield start


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=120)
