"""Processes of another user, which nobody but that user may end: they are named, and not waited for without a
limit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from ..conftest import SOURCE

# A child becomes someone else, as with sudo. Then it waits, or starts processes faster than one looks.
BECOMES = """
import os, signal, sys, time
read_end, write_end = os.pipe()
if os.fork() == 0:
    os.setresuid(12345, 12345, 12345)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.write(write_end, b".")
    while True:
        if sys.argv[1] == "waits":
            signal.pause()
        if os.fork() == 0:
            time.sleep(0.2)
            os._exit(0)
        time.sleep(0.002)
os.read(read_end, 1)
print(os.getpid(), flush=True)
if sys.argv[2] == "ends":
    sys.exit(0)
signal.pause()
"""
WATCHES = """
import json, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from dynotune import launch
from dynotune.launch.process import processes
from dynotune.schema.errors import CannotRunHere
run_dir = launch.new_run_folder(Path("runs"))
words = ["/usr/bin/python3", "-c", *sys.argv[2:]]
try:
    with launch.start(words, env=dict(os.environ), cwd=Path.cwd(), run_dir=run_dir) as launched:
        while not (run_dir / "stdout").read_text():
            time.sleep(0.01)
        if sys.argv[4] == "stays":
            os.kill(processes.read(launched.pid).parent, signal.SIGKILL)
        launched.wait(600)
except CannotRunHere as error:
    print(json.dumps([error.message, error.hint]))
"""


@pytest.fixture
def folder():
    if os.geteuid() != 0 or shutil.which("setpriv") is None or not Path("/usr/bin/python3").exists():
        pytest.skip("needs root, setpriv and /usr/bin/python3 to become someone else")
    base = Path(tempfile.mkdtemp(prefix="dynotune-test-"))
    base.chmod(0o777)
    yield base
    shutil.rmtree(base)


@pytest.mark.parametrize(
    "how",
    ["ends", pytest.param("stays", marks=pytest.mark.long)],
    ids=["the command ends", "the supervisor is killed"],
)
@pytest.mark.parametrize("what", [pytest.param("waits", marks=pytest.mark.long), "forks"])
def test_processes_of_another_user_are_named_after_a_limit(what, how, folder, marked):
    become = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--inh-caps=+setuid",
        "--ambient-caps=+setuid",
    ]
    if subprocess.run([*become, "/usr/bin/test", "-r", f"{SOURCE}/dynotune"], cwd="/").returncode:
        pytest.skip("another user may not read the source, or keep a capability")
    words = [*become, "/usr/bin/python3", "-c", WATCHES, SOURCE, BECOMES, what, how]
    done = subprocess.run(words, cwd=folder, env=marked.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    message, hint = json.loads(done.stdout)
    assert "processes" in message
    assert any(str(pid) in message for pid in marked.pids())
    assert "by hand" in hint
