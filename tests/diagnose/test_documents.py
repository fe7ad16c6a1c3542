"""Observations and diagnoses on their way to a file and back."""

from __future__ import annotations

import msgspec
import pytest

from dynotune.diagnose.attribute import attribute
from dynotune.diagnose.conclusions import conclude
from dynotune.diagnose.live_diagnosis import refuse_torch, replayed
from dynotune.diagnose.rank_attribution import attributed, uses_device
from dynotune.schema import document
from dynotune.schema.allocator import Allocator
from dynotune.schema.diagnosis import Diagnosis, Examination
from dynotune.schema.errors import CannotRunHere, RecordError
from dynotune.schema.facts import Unknown
from dynotune.schema.model import Model
from dynotune.schema.observation import Observation, ProcessState
from dynotune.trace.summary import summarise

from ..doctor.observations import observed
from .simulated import MS, SYNC, US, kernels, load, recorded, timed

ACTS = [load(20 * MS), *kernels(100, 20 * US, 100 * US), SYNC]


@pytest.fixture
def observation() -> Observation:
    plain, trace = timed(ACTS), summarise([recorded(ACTS, slower=2)])
    return observed(
        attributed=attribute(plain, trace), trace=trace, timed=plain, facts={"gpu.name": Unknown("x")}
    )


@pytest.mark.parametrize("type_", [Observation, Diagnosis, Examination])
def test_every_document_can_be_read_back(type_):
    msgspec.json.Decoder(type_)


def test_an_observation_replays_its_diagnosis(observation, tmp_path):
    path = tmp_path / "observation.json"
    document.write(path, observation)
    assert replayed(path) == observation
    assert conclude(replayed(path)) == conclude(observation)
    assert conclude(observation).bottleneck == "input"


def test_a_replay_attributes_what_was_not(observation, tmp_path):
    path = tmp_path / "observation.json"
    document.write(path, msgspec.structs.replace(observation, attribution=Unknown("of an older version")))
    assert replayed(path).attribution == observation.attribution


@pytest.mark.parametrize(
    "text", ["", "{}", '{"schema": "dynotune.observation/9"}', '{"schema": "dynotune.run/1"}']
)
def test_replay_refuses_a_file_that_is_no_observation(tmp_path, text):
    path = tmp_path / "observation.json"
    path.write_text(text)
    with pytest.raises(RecordError):
        replayed(path)


def test_without_a_trace_or_a_timing_the_reason_stands_in_the_attribution(observation):
    (state,) = observation.processes
    told = attributed([state], Unknown("the profiler is the program's own"))
    assert told == Unknown("nothing was recorded: the profiler is the program's own")
    assert attributed([ProcessState(pid=1, timing=Unknown("why"))], observation.trace) == Unknown("why")
    assert isinstance(attributed([], observation.trace), Unknown)


def test_a_program_uses_a_device_where_its_model_or_its_allocator_is_there():
    on_host = Model(name="Net", num_parameters=1, parameter_bytes=4, devices={"cpu": 1})
    allocator = Allocator(**dict.fromkeys(Allocator.__struct_fields__, 1))
    assert not uses_device([ProcessState(pid=1, models=[on_host])])
    assert uses_device(
        [ProcessState(pid=1, models=[msgspec.structs.replace(on_host, devices={"cuda:0": 1})])]
    )
    assert uses_device([ProcessState(pid=1, allocators=[allocator])])


@pytest.mark.parametrize(
    "version", ["2.4.0", "2.13.0+cu130", "3.0", "2.10.0a0", "unusual", Unknown("not asked")]
)
def test_a_torch_that_may_do_is_let_through(version):
    refuse_torch({"torch.version": version})
    refuse_torch({})


@pytest.mark.parametrize("version", ["2.3.1", "1.13.1+cu117"])
def test_a_torch_that_is_too_old_is_named(version):
    with pytest.raises(CannotRunHere, match=r"2\.4 or newer") as refused:
        refuse_torch({"torch.version": version})
    assert version in refused.value.message
