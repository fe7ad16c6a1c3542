"""Programs in namespaces of their own, as a container runtime makes them: joined from outside where that is
safe, and refused with what to do instead where they have fewer rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.running import injected, process_files, targets
from dynotune.running.shared_folder import shared_folder
from dynotune.schema.facts import Unknown

from .conftest import READY

PROGRAM = [sys.executable, "-c", READY]
WITH_PIDS = ["unshare", "--pid", "--fork", "--mount-proc"]


def can_make_namespaces() -> bool:
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "setpriv"))):
        return False
    return not subprocess.run([*WITH_PIDS, "true"], capture_output=True, check=False).returncode


pytestmark = pytest.mark.skipif(not can_make_namespaces(), reason="it takes root and namespaces")


@pytest.mark.parametrize(
    "words", [["unshare", "--mount"], WITH_PIDS, ["unshare", "--net", "--ipc", "--uts"]], ids=" ".join
)
def test_interpreter_meets_the_process_when_it_has_namespaces_of_its_own(started, words):
    process = targets.find(started(words=[*words, *PROGRAM]).pid).ranks[0].process
    place = injected.place_of(process)
    assert not isinstance(place, Unknown)
    code = "import sys; print(open(f'/proc/{sys.argv[1]}/cmdline').read())"
    words = [*place.enter, sys.executable, "-c", code, str(place.pid)]
    assert READY in subprocess.run(words, capture_output=True, text=True, check=True).stdout
    with shared_folder(process) as shared:
        shared.base.mkdir(parents=True, exist_ok=True)
        seen = Path(f"/proc/{process.pid}/root{shared.of_target(shared.base)}")
        assert seen.samefile(shared.base)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["unshare", "--user", "--map-root-user"], "--pid {pid}"),
        (["unshare", "--user", "--map-root-user", *WITH_PIDS[1:]], "--pid 1"),
        ([*WITH_PIDS, "setpriv", "--bounding-set=-sys_admin"], "--pid 1"),
        (["setpriv", "--no-new-privs"], "--pid {pid}"),
    ],
    ids=["user", "user and pid", "capabilities", "no new privileges"],
)
def test_process_is_refused_with_what_to_run_when_it_has_fewer_rights(started, words, told):
    process = targets.find(started(words=[*words, *PROGRAM]).pid).ranks[0].process
    place = injected.place_of(process_files.read(process.pid))
    assert isinstance(place, Unknown)
    assert "fewer rights" in place.reason and place.reason.endswith(f"with {told.format(pid=process.pid)}")
