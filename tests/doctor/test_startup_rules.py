"""Rules about the start, with starts that were timed: in which state each fires, is silent, and cannot
tell."""

from __future__ import annotations

import pytest

from dynotune.diagnose import conclude
from dynotune.doctor import ObservationView, examine
from dynotune.schema.observation import Observation

from .machines import NO_GPU, NOBODY, alone, found, h200, missing
from .observations import attribution, observed, timing

NATIVE, BY_PTX = {"torch.runs_natively": True}, {"torch.runs_natively": False}
NO_TORCH = {"torch.runs_natively": NOBODY, "torch.cuda": NOBODY, "torch.arch_list": NOBODY}
LASTS = {
    "cache.cuda.path": "/home/me/.nv/ComputeCache",
    "cache.cuda.writable": True,
    "cache.cuda.lasts": True,
    "cache.cuda.storage": "it lies on ext4, mounted at /",
    "cache.inductor.path": "/tmp/torchinductor_me",
    "cache.inductor.off": "",
    "cache.inductor.writable": True,
    "cache.inductor.lasts": True,
    "cache.inductor.storage": "it lies on ext4, mounted at /",
}
TIMED = LASTS | {
    "start.cold_s": 20.0,
    "start.warm_s": 8.0,
    "start.saved_s": 12.0,
    "start.cuda_added_bytes": 0,
    "start.cuda_again_bytes": 0,
    "start.cuda_kept_bytes": 0,
    "start.compiler_added_bytes": 0,
    "start.compiler_again_bytes": 0,
    "start.num_graphs": 0,
    "start.compile_cold_s": 0.0,
    "start.compile_warm_s": 0.0,
    "start.cuda_start_s": 0.4,
    "start.late_s": 0.001,
    "code.num_compiled": 0,
    "code.ptx_bytes": 0,
    "code.compiled": [],
}
JIT = TIMED | {"start.cuda_added_bytes": 3 << 20, "start.cuda_kept_bytes": 3 << 20}
COMPILED = TIMED | {
    "start.compiler_added_bytes": 5 << 20,
    "start.num_graphs": 2,
    "start.compile_cold_s": 11.0,
    "start.compile_threads": 32,
}
CARRIES_PTX = {"code.num_compiled": 1, "code.ptx_bytes": 1 << 20, "code.compiled": ["kernels"]}

FIRES = {
    "jit-cache-not-persistent": [
        (BY_PTX | LASTS | {"cache.cuda.lasts": False}, "medium"),
        (JIT | {"cache.cuda.lasts": False}, "high"),
        (JIT | {"cache.cuda.writable": False, "start.saved_s": 0.2}, "medium"),
    ],
    "lazy-first-call-jitter": [(TIMED | {"start.late_s": 0.3}, "low")],
    "compile-threads": [
        (COMPILED | {"host.num_cores": 4}, "low"),
        ({"TORCHINDUCTOR_COMPILE_THREADS": "1"}, "low"),
        (COMPILED | {"LOCAL_WORLD_SIZE": "8", "host.num_cores": 32}, "low"),
    ],
}
SILENT = {
    "jit-cache-not-persistent": [
        {},
        NO_GPU,
        JIT,
        TIMED | {"cache.cuda.lasts": False},
        JIT | {"cache.cuda.lasts": False, "CUDA_CACHE_DISABLE": "1"},
    ],
    "lazy-first-call-jitter": [
        NO_GPU,
        TIMED,
        TIMED | {"start.late_s": 0.3, "CUDA_MODULE_LOADING": "EAGER"},
        TIMED | {"start.late_s": 0.3, "start.cuda_start_s": 0.0},
    ],
    "compile-threads": [
        {},
        COMPILED | {"host.num_cores": 32},
        TIMED | {"start.compile_threads": 32, "host.num_cores": 2},
        {"TORCHINDUCTOR_COMPILE_THREADS": "1", "host.num_cores": 2},
    ],
}
UNKNOWN = {
    "jit-cache-not-persistent": [
        ({"torch.runs_natively": NOBODY}, "torch.runs_natively"),
        (BY_PTX, "cache.cuda.writable"),
        (JIT | {"cache.cuda.lasts": NOBODY}, "cache.cuda.lasts"),
    ],
    "lazy-first-call-jitter": [
        ({}, "a start that was timed"),
        (TIMED | {"start.late_s": NOBODY}, "start.late_s"),
    ],
    "compile-threads": [
        (COMPILED | {"host.num_cores": NOBODY}, "host.num_cores"),
        ({"TORCHINDUCTOR_COMPILE_THREADS": NOBODY}, "env.TORCHINDUCTOR_COMPILE_THREADS"),
    ],
}

# Rules that judge without timed starts too, and what these add.
ALSO_FIRE = [
    ("ptx-jit-active", JIT, "high", "3 MiB in the driver"),
    (
        "ptx-jit-active",
        JIT | {"start.saved_s": 2.0},
        "medium",
        "20 s to the first step with the caches cold, 8 s",
    ),
    ("ptx-jit-active", JIT | {"start.saved_s": 0.0}, "low", "3 MiB"),
    ("ptx-jit-active", NO_TORCH | JIT, "high", "3 MiB"),
    # Without torch a few bytes are kernels of the program's own.
    ("ptx-jit-active", NO_TORCH | TIMED | {"start.cuda_added_bytes": 4000}, "low", "3.91 KiB"),
    (
        "ptx-jit-active",
        NO_TORCH | TIMED | CARRIES_PTX | {"CUDA_CACHE_MAXSIZE": "1000"},
        "high",
        "1 of its libraries",
    ),
    ("ptx-jit-active", NO_TORCH | TIMED | CARRIES_PTX | {"CUDA_CACHE_DISABLE": "1"}, "high", "(kernels)"),
    ("jit-cache-too-small", JIT | {"start.cuda_again_bytes": 3 << 20}, "high", "3 MiB again"),
    (
        "jit-cache-too-small",
        NO_TORCH | TIMED | CARRIES_PTX | {"CUDA_CACHE_MAXSIZE": "1000"},
        "medium",
        "nothing is kept",
    ),
    (
        "jit-cache-disabled",
        NO_TORCH | TIMED | CARRIES_PTX | {"CUDA_CACHE_DISABLE": "1"},
        "high",
        "1 MiB of PTX",
    ),
    ("jit-cache-disabled", JIT | {"CUDA_CACHE_DISABLE": "1"}, "high", "CUDA_CACHE_DISABLE=1"),
    ("compile-cold-cache", COMPILED | {"cache.inductor.lasts": False}, "high", "torchinductor_me"),
    (
        "compile-cold-cache",
        COMPILED | {"cache.inductor.writable": False, "start.saved_s": 2.0},
        "medium",
        "8 s",
    ),
    (
        "caches-disabled",
        COMPILED | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
        "medium",
        "8 s with them warm",
    ),
    ("caches-disabled", TIMED | {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, "low", "=1"),
]
ALSO_SILENT = [
    ("ptx-jit-active", TIMED),
    ("ptx-jit-active", NO_TORCH | TIMED),
    # The empty kernel of cuDNN.
    ("ptx-jit-active", TIMED | {"start.cuda_added_bytes": 4000}),
    # It carries PTX, but a start compiled nothing, and the cache would have shown it.
    ("ptx-jit-active", NO_TORCH | TIMED | CARRIES_PTX),
    ("jit-cache-too-small", JIT),
    ("compile-cold-cache", COMPILED),
    ("compile-cold-cache", TIMED | {"cache.inductor.lasts": False}),
    (
        "compile-cold-cache",
        COMPILED | {"cache.inductor.lasts": False, "cache.inductor.off": "it is disabled"},
    ),
]


def cases(table):
    return [
        pytest.param(id_, case, id=f"{id_}-{at}")
        for id_, rows in table.items()
        for at, case in enumerate(rows)
    ]


@pytest.mark.parametrize(("id_", "case"), cases(FIRES))
def test_a_rule_about_the_start_fires(id_, case):
    changes, severity = case
    (finding,) = found(id_, changes)
    assert (finding.id, finding.severity) == (id_, severity)
    assert finding.claim.endswith(".")
    assert finding.evidence
    assert finding.remedy


@pytest.mark.parametrize(("id_", "changes"), cases(SILENT))
def test_a_rule_about_the_start_is_silent(id_, changes):
    assert found(id_, changes) == []


@pytest.mark.parametrize(("id_", "case"), cases(UNKNOWN))
def test_a_rule_about_the_start_cannot_tell(id_, case):
    changes, what = case
    assert missing(id_, changes) == what


@pytest.mark.parametrize(("id_", "changes", "severity", "evidence"), ALSO_FIRE)
def test_starts_that_were_timed_are_the_better_evidence(id_, changes, severity, evidence):
    (finding,) = found(id_, changes)
    assert finding.severity == severity
    assert evidence in "\n".join(finding.evidence)


@pytest.mark.parametrize(("id_", "changes"), ALSO_SILENT)
def test_starts_that_lost_nothing_speak_against_it(id_, changes):
    assert found(id_, changes) == []


def test_compile_cache_finding_is_unknown_when_the_program_was_not_watched():
    assert (
        missing("compile-cold-cache", COMPILED | {"cache.inductor.lasts": NOBODY}) == "cache.inductor.lasts"
    )
    _, unknown = examine(ObservationView(Observation(facts=h200())), "program")
    assert "compile-cold-cache" in {each.id for each in unknown}


def test_a_quiet_start_has_no_findings():
    found_, _ = examine(ObservationView(alone(h200(TIMED))), "machine")
    assert found_ == []


@pytest.mark.parametrize(
    ("whole_s", "first_s", "severity"),
    [(11.0, 10.5, "high"), (6.0, 4.0, "medium"), (60.0, 10.0, ""), (1.5, 1.2, ""), (None, 10.0, "")],
)
def test_start_is_named_when_a_command_that_ended_spent_most_of_its_time_there(whole_s, first_s, severity):
    facts = {} if whole_s is None else {"command.whole_s": whole_s}
    seen = observed(timed=timing(step_s=0.01, time_to_first_step_s=first_s), facts=facts)
    findings = {one.id: one for one in examine(ObservationView(seen))[0]}
    assert (findings["start-dominates"].severity if "start-dominates" in findings else "") == severity


def test_verdict_says_that_the_start_takes_most_of_the_time():
    timed = timing(step_s=0.01, time_to_first_step_s=10.01)
    told = conclude(
        observed(timed=timed, attributed=attribution(host=0.5), facts={"command.whole_s": 11.0})
    ).verdict
    assert told.endswith("The command takes 11 s, of which 10 s pass before its first step.")
