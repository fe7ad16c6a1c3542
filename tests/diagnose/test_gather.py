"""What the two runs of a diagnosis say together."""

from __future__ import annotations

from pathlib import Path

from dynotune.diagnose.request import DiagnoseRequest
from msgspec.structs import replace

from dynotune.diagnose.gather import _as_soon, _fresh_caches
from dynotune.diagnose.observe import PlainRun
from dynotune.diagnose.profiled import Profiled
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import FRESH_CACHES, ProcessState
from dynotune.schema.run import EnvironmentChange, Run

from ..doctor.observations import observed, timing
from ..report.summaries import summary


def change(value: str, name: str = "TORCHINDUCTOR_CACHE_DIR", file: str = "train.py") -> EnvironmentChange:
    return EnvironmentChange(name, value, file, 3, "main")


def plain(*changes: EnvironmentChange) -> list[ProcessState]:
    processes = observed(timed=timing(), environment_changes=list(changes)).processes
    assert not isinstance(processes, Unknown)
    return processes


def recorded(*changes: EnvironmentChange) -> Profiled:
    return Profiled([], summary(), list(changes))


def test_the_recorded_run_begins_where_the_plain_one_was_steady_unless_the_user_says_where() -> None:
    request = DiagnoseRequest(command=["train"], cwd=Path("/"), env={}, base=Path("/runs"))
    run = Run(id="plain", purpose="observed", command=["train"], cwd="/", settings=[], started_s=0.0)
    seen = PlainRun(folder=Path(), run=run, processes=[], begin_s=0.0, end_s=1.0, calm_steps=15)
    assert _as_soon(request, seen).warmup_steps == 15
    assert _as_soon(replace(request, warmup_steps=40), seen).warmup_steps == 40
    assert _as_soon(request, replace(seen, calm_steps=None)).warmup_steps is None


def test_a_cache_folder_that_is_another_one_in_each_run_is_told() -> None:
    found = _fresh_caches(plain(change("/tmp/job_a")), recorded(change("/tmp/job_b")))
    assert found == {FRESH_CACHES: "TORCHINDUCTOR_CACHE_DIR"}


def test_a_folder_that_lasts_one_of_the_librarys_own_and_one_run_alone_say_nothing() -> None:
    assert _fresh_caches(plain(change("/cache")), recorded(change("/cache"))) == {}
    torchs = [change(f"/tmp/{end}", file="/site-packages/torch/_inductor/x.py") for end in "ab"]
    assert _fresh_caches(plain(torchs[0]), recorded(torchs[1])) == {}
    assert _fresh_caches(plain(change("/tmp/job_a")), recorded()) == {}
    assert _fresh_caches(plain(change("/tmp/job_a")), Unknown("it was not recorded")) == {}


def test_ranks_that_share_a_folder_in_both_runs_keep_something() -> None:
    first = plain(change("/cache/0"), change("/cache/1"))
    assert _fresh_caches(first, recorded(change("/cache/1"), change("/cache/0"))) == {}
