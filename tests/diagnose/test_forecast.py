"""What the loader would reach: arithmetic on a loader that was isolated, and a trial of decoders in real
processes."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune.diagnose.forecast import forecasts, try_decoders
from dynotune.schema.diagnosis import UpperBound
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader, Loading, SamplePart
from dynotune.schema.run import RunSpec

NO_TRIAL = {}
CHANGES = {
    "cache": "all that is read in the page cache",
    "memory": "samples in memory, nothing read",
    "gpu": "resizing on the GPU",
    "decoder": "decoding by simplejpeg",
}


def part(kind, what, share, num=400):
    return SamplePart(part=kind, what=what, wall_s=share, num=round(num * share))


def loader(num_workers=2, cpu=1.0, **fields):
    parts = [
        part("read", "file", 0.3),
        part("decode", "PIL", 0.4),
        part("transform", "Resize (resize)", 0.2),
        part("own", "", 0.1),
    ]
    usual = {"num_batches": 50, "fetch_s": 0.1, "longest_s": 0.1, "cpu_s": 0.1 * cpu, "parts": parts}
    loading = Loading(**(usual | fields))
    return Loader(name="DataLoader", dataset="d.D", num_workers=num_workers, batch_size=8, loading=loading)


def bounds(loader_s=0.05, step_s=0.01, both_s=0.05):
    times = {"loader": loader_s, "step": step_s, "both": both_s}
    return [UpperBound(part=name, step_s=time_s, num_steps=10) for name, time_s in times.items()]


def told(loader, bounds, cores, trial=NO_TRIAL):
    found = forecasts(loader, bounds, cores, trial)
    return found if isinstance(found, Unknown) else {row.change: row for row in found}


def test_more_workers_make_as_many_more_batches_until_the_model_sets_the_pace():
    found = told(loader(2), bounds(), 16.0)
    assert found["4 workers"].step_s == pytest.approx(0.025)
    assert found["4 workers"].setting == "loader.num_workers=4"
    assert found["10 workers"].step_s == found["16 workers"].step_s == pytest.approx(0.01)


def test_workers_that_compute_get_no_faster_than_cores_are():
    assert set(told(loader(2), bounds(), 4.0)) & {"10 workers", "16 workers"} == set()
    assert told(loader(2, cpu=0.01), bounds(), 4.0)["10 workers"].step_s == pytest.approx(0.01)


def test_fewer_workers_may_be_as_fast_as_now_since_they_compete_less():
    one = told(loader(2), bounds(), 2.0)["1 worker"]
    assert (one.step_s, one.least_step_s) == (pytest.approx(0.1), pytest.approx(0.05))
    four = told(loader(8, cpu=0.2), bounds(), 2.0)["4 workers"]
    assert four.least_step_s == pytest.approx(0.04), "two cores need as long for what it computes"


def test_first_workers_work_beside_the_step():
    found = told(loader(0), bounds(loader_s=0.05, step_s=0.04, both_s=0.09), 8.0)
    assert found["2 workers"].step_s == pytest.approx(0.04, abs=0.001)


def test_a_part_that_goes_takes_its_share_along():
    files = {"read_bytes": 1e6, "storage_bytes": 1e6}
    found = told(loader(1, **files), bounds(), 1.0, {"pil": (0.004, 0.004), "simplejpeg": (0.002, 0.002)})
    for name, share in (("cache", 0.3), ("memory", 0.3), ("gpu", 0.2), ("decoder", 0.2)):
        assert found[CHANGES[name]].loader_s == pytest.approx(0.05 * (1 - share))
    cached = told(loader(1, read_bytes=1e6, storage_bytes=0.0), bounds(), 1.0)
    assert cached[CHANGES["cache"]].loader_s == pytest.approx(0.05)


@given(
    st.floats(0.001, 1), st.floats(0.001, 1), st.floats(0.001, 1), st.integers(0, 8), st.integers(1, 64),
    st.floats(0.1, 10),
)  # fmt: skip
def test_no_forecast_is_below_its_own_bound(loader_s, step_s, both_s, workers, cores, ratio):
    trial = {"pil": (0.004, 0.003), "simplejpeg": (0.004 * ratio, 0.003 * ratio)}
    rows = told(
        loader(workers, read_bytes=2.0, storage_bytes=1.0),
        bounds(loader_s, step_s, both_s),
        float(cores),
        trial,
    )
    assert all(0 < row.least_step_s <= row.step_s for row in rows.values())


def test_another_decoder_is_a_setting_where_the_files_are_of_jpeg():
    trial = {"pil": (0.004, 0.004), "simplejpeg": (0.002, 0.002)}
    named = [
        told(loader(1, decoded=[f"a.{end}"]), bounds(), 1.0, trial)[CHANGES["decoder"]]
        for end in ("JPEG", "png")
    ]
    assert [row.setting for row in named] == ["decode.backend=simplejpeg", ""]


def test_forecast_is_empty_or_unknown_when_nobody_looked_at_the_loader():
    assert set(told(loader(1, parts=[]), bounds(), 1.0)) == set()
    nothing = Loader(name="L", dataset="d", loading=Unknown("not timed"))
    assert told(nothing, bounds(), 4.0) == Unknown("not timed")


def test_decoders_are_tried_on_the_programs_own_files_where_they_are_installed(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (32, 32)).save(tmp_path / "a.jpg")
    (tmp_path / "simplejpeg.py").write_text(
        "def decode_jpeg(raw, space):\n    assert raw[:2] == bytes([255, 216])\n"
    )
    (tmp_path / "cv2.py").write_text("def imdecode(*words):\n    return None\ndef setNumThreads(num): pass\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = RunSpec(command=[sys.executable, "train.py"], cwd=tmp_path, base=tmp_path, env=env)
    found = try_decoders(run, loader(2, decoded=[str(tmp_path / "a.jpg"), "/gone.jpg"]))
    assert set(found) == {"pil", "simplejpeg"}  # one that gives nothing is no decoder of these
    assert all(0 < fastest_s <= usual_s for usual_s, fastest_s in found.values())
    assert try_decoders(run, loader(2)) == {}
    odd = str(tmp_path / b"\xff.jpg".decode("utf-8", "surrogateescape"))
    image.new("RGB", (32, 32)).save(odd)
    assert set(try_decoders(run, loader(2, decoded=[odd]))) == {"pil", "simplejpeg"}
