"""Claims: found by what people call them, and by their traces on a machine."""

from __future__ import annotations

import pytest

from dynotune.claims import all_claims
from dynotune.doctor import ObservationView, seen_here
from dynotune.doctor.claims import by_name

from .machines import alone, h200


def named(word: str) -> list[str]:
    return [each.id for each in by_name(word, all_claims())]


@pytest.mark.parametrize(
    ("word", "id_"),
    [
        ("PREEMPT_RT", "preempt-rt"),
        ("preempt-rt", "preempt-rt"),
        ("net.core.rmem_max", "socket-buffers"),
        ("rmem_max", "socket-buffers"),
        ("vm.dirty_ratio", "dirty-ratio"),
        ("vm.swappiness", "swappiness"),
        ("cudnn.benchmark", "benchmark-dynamic"),
        ("torch.cuda.empty_cache", "empty-cache"),
        ("CUDA_LAUNCH_BLOCKING", "launch-blocking"),
        ("PIN_MEMORY", "pin-memory-variable"),
        ("CUBLAS_WORKSPACE_CONFIG", "cublas-workspace"),
        ("GPU-Util", "utilisation"),
        ("memory pool", "hand-made-pool"),
        ("yolo checks", "yolo-checks"),
        ("num_workers", "more-workers"),
        ("torch.backends.cuda.matmul.allow_tf32", "allow-tf32"),
    ],
)
def test_a_claim_is_found_by_what_people_call_it(word, id_):
    assert named(word) == [id_]


def test_a_part_of_a_name_finds_all_that_hold_it_and_a_whole_name_finds_itself_alone():
    assert set(named("rmem")) == {"socket-buffers", "tcp-autotuning"}
    assert named("tcp_rmem") == ["tcp-autotuning"]


@pytest.mark.parametrize("word", ["", "  ", "rt", "nothing of the kind"])
def test_named_claims_are_empty_when_a_word_is_no_claim(word):
    assert named(word) == []


def test_every_name_is_of_one_claim():
    names = [name.lower() for claim in all_claims() for name in {claim.id, *claim.about}]
    assert len(set(names)) == len(names)


def traces(changes) -> dict[str, str]:
    return {each.id: each.seen for each in seen_here(ObservationView(alone(h200(changes))), all_claims())}


def test_a_machine_at_its_defaults_shows_none():
    assert traces({}) == {}


@pytest.mark.parametrize(
    ("changes", "id_", "seen"),
    [
        ({"host.preempt_rt": True}, "preempt-rt", "the kernel is built with PREEMPT_RT"),
        ({"host.rmem_max": 16777216}, "socket-buffers", "net.core.rmem_max is 16777216"),
        ({"host.wmem_max": 16777216}, "socket-buffers", "net.core.wmem_max is 16777216"),
        ({"host.dirty_ratio": 5}, "dirty-ratio", "vm.dirty_ratio is 5 (default 20)"),
        ({"host.dirty_background_ratio": 5}, "dirty-ratio", "vm.dirty_background_ratio is 5 (default 10)"),
        ({"host.swappiness": 1}, "swappiness", "vm.swappiness is 1 (default 60)"),
        ({"host.tcp_rmem": [4096, 87380, 67108864]}, "tcp-autotuning", "net.ipv4.tcp_rmem is 67108864"),
        ({"PIN_MEMORY": "False"}, "pin-memory-variable", "PIN_MEMORY=False"),
        ({"CUDA_CACHE_MAXSIZE": "4294967296"}, "jit-cache", "CUDA_CACHE_MAXSIZE=4294967296"),
    ],
)
def test_a_trace_on_the_machine_brings_the_claim_up(changes, id_, seen):
    (found,) = traces(changes).items()
    assert found[0] == id_
    assert seen in found[1]


def test_defaults_of_newer_kernels_are_defaults_too():
    assert (
        traces(
            {"host.rmem_max": 4194304, "host.wmem_max": 4194304, "host.tcp_rmem": [4096, 131072, 33554432]}
        )
        == {}
    )


def test_claims_seen_here_leave_out_those_that_findings_say_save_real_time_kernels():
    seen = ObservationView(alone(h200({"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "host.preempt_rt": True})))
    found = ["cublas-env-regex", "preempt-rt-kernel"]
    assert [each.id for each in seen_here(seen, all_claims(), found)] == ["preempt-rt"]
