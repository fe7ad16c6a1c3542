"""What holds for every test: programs that run side by side leave each other the cores."""

import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

import dynotune

from .forked import Forked

# Threads of OpenMP wait for work by spinning, which takes the core of whoever runs beside them.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No test depends on the machine's speed, and what is imported late makes the first example slow.
hypothesis.settings.register_profile("dynotune", deadline=None)
hypothesis.settings.load_profile("dynotune")

# Shells start their background jobs with the keyboard's signals ignored, and nohup what it runs with hangups
# ignored; all programs that tests start would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# pytest rewrites each test module for its assertions, which takes half a minute in all. The next process
# reads what was kept, also where PYTHONDONTWRITEBYTECODE is set. Of programs that tests start, that variable
# still decides.
sys.dont_write_bytecode = False

# What is imported and collected stays to the end: looking through it for garbage takes a third of the
# collection.
gc.disable()

# Names the interpreter that programs under test are run by; the interpreter of the tests if it is unset.
TARGET = "DYNOTUNE_TEST_PYTHON"

# What a start of dynotune takes most of its time for.
IN_DYNOTUNE = (
    *(f"dynotune.cli.{name}" for name in ("compare", "defaults", "diagnose", "doctor", "recipe", "tune")),
    *(f"dynotune.{name}" for name in ("api", "claims", "diagnose.live_diagnosis", "recipes.checking")),
    *(f"dynotune.search.{name}" for name in ("real_bench", "tune")),
    *(f"dynotune.report.{name}" for name in ("doctor", "page", "plain_console", "progress", "study")),
    *(f"rich.{name}" for name in ("markdown", "status", "table")),
    *("pydantic", "pynvml", "scipy.special", "typer.rich_utils"),
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is for `-m long`; keep the tests that start programs by the target, if one is named: others
    do not."""
    if not config.getoption("-m"):
        left_out = pytest.mark.skip(reason="it takes long: make test-long")
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(left_out)
    if TARGET in os.environ:
        kept = [item for item in items if "target_python" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


def pytest_collection_finish() -> None:
    """Not frozen: the agent looks for functions among all objects, and does not see those that are."""
    gc.enable()


def pytest_sessionfinish() -> None:
    """Look through everything once: pytest then does so five times, and so does Python as it ends."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def target_python() -> str:
    """Return the interpreter that programs under test are run by. It may be older or newer than this one."""
    return os.environ.get(TARGET) or sys.executable


@pytest.fixture(scope="session")
def interpreters(target_python: str) -> Iterator[dict[str, Forked]]:
    """One that has imported torch, and one that has imported its compiler too, as the first optimizer makes
    it do."""
    started = {
        "torch": Forked("torch", python=target_python),
        "compiler": Forked("torch", "torch._dynamo", python=target_python),
    }
    yield started
    for forked in started.values():
        forked.end()


@pytest.fixture(scope="session")
def dynotune_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    """dynotune's own interpreter, which has imported what most subcommands import."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONPATH": str(Path(dynotune.__file__).parent.parent),
        "OPENBLAS_NUM_THREADS": "1",
    }
    forks = Forked(*IN_DYNOTUNE, env=env)
    yield forks
    forks.end()


@pytest.fixture
def largest_file() -> Iterator[Callable[[int], None]]:
    """Sets the number of bytes at which writing to a file fails with EFBIG, as it fails on a full disk with
    ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
