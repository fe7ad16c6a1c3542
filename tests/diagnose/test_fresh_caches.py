from __future__ import annotations

from dynotune.diagnose.fresh_caches import fresh_caches
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import FRESH_CACHES, ProcessState
from dynotune.schema.run import EnvironmentChange

from ..doctor.observations import observed, timing


def change(fresh: bool, file: str = "train.py") -> EnvironmentChange:
    return EnvironmentChange("TORCHINDUCTOR_CACHE_DIR", "/tmp/job", file, 3, "main", fresh=fresh)


def plain(*changes: EnvironmentChange) -> list[ProcessState]:
    processes = observed(timed=timing(), environment_changes=list(changes)).processes
    assert not isinstance(processes, Unknown)
    return processes


def test_a_cache_folder_that_is_another_one_in_each_run_is_told() -> None:
    assert fresh_caches(plain(change(fresh=True))) == {FRESH_CACHES: "TORCHINDUCTOR_CACHE_DIR"}


def test_a_folder_that_lasts_and_one_of_the_librarys_own_say_nothing() -> None:
    assert fresh_caches(plain(change(fresh=False))) == {}
    assert fresh_caches(plain(change(fresh=True, file="/site-packages/torch/_inductor/x.py"))) == {}
