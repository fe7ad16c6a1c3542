"""Caches that settings put elsewhere: what is said of them before a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dynotune.knobs import parse
from dynotune.launch.caches import contents
from dynotune.measure.live.cautions import cache_cautions
from dynotune.measure.live.request import CompareRequest

from ...fakes import of_run


@pytest.fixture
def request_(tmp_path):
    return of_run(CompareRequest, candidate=[], cwd=tmp_path, base=tmp_path / "runs")


def test_settings_may_name_the_folders_of_caches_themselves(tmp_path):
    texts = (
        "env.TORCHINDUCTOR_CACHE_DIR=made/../kept",
        "env.CUDA_CACHE_PATH=/data/cuda",
        "env.TRITON_CACHE_DIR=@unset",
        "env.OMP_NUM_THREADS=1",
    )
    assert contents.named([parse(text) for text in texts], tmp_path) == {
        "TORCHINDUCTOR_CACHE_DIR": tmp_path / "kept",
        "CUDA_CACHE_PATH": Path("/data/cuda"),
    }


def test_a_folder_of_the_users_is_never_emptied_and_cold_runs_with_it_are_not_called_cold(request_):
    named = replace(request_, candidate=[parse("env.TORCHINDUCTOR_CACHE_DIR=kept")])
    (said,) = cache_cautions(replace(named.run, caches="cold"), named.arms)
    assert said.startswith(f"The candidate keeps what it compiles in {request_.run.cwd / 'kept'}")
    assert "its runs are not cold" in said
    assert cache_cautions(named.run, named.arms) == []
    (request_.run.cwd / "kept" / "fxgraph").mkdir(parents=True)
    assert "finds there what is there already" in cache_cautions(named.run, named.arms)[0]


def test_arms_that_share_a_folder_find_what_the_other_compiled(request_):
    setting = parse("env.TRITON_CACHE_DIR=/data/triton")
    shared = replace(
        request_, candidate=[setting, parse("env.A=1")], run=replace(request_.run, settings=[setting])
    )
    assert [text for text in cache_cautions(shared.run, shared.arms) if "share the caches" in text]
    apart = replace(shared, run=replace(shared.run, settings=[parse("env.TRITON_CACHE_DIR=/other")]))
    assert cache_cautions(apart.run, apart.arms) == []
