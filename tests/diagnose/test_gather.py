"""What the two runs of a diagnosis say together."""

from __future__ import annotations

from dynotune.diagnose.gather import _fresh_caches
from dynotune.diagnose.profiled import Profiled
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import FRESH_CACHES, ProcessState
from dynotune.schema.run import EnvironmentChange

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
