"""Rules on variables and builds: in which state each fires, is silent, and cannot tell."""

from __future__ import annotations

import pytest

from dynotune import probe
from dynotune.doctor import ObservationView, all_rules, examine
from dynotune.knobs import parse
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import FRESH_CACHES
from dynotune.schema.run import EnvironmentChange
from dynotune.schema.trace_summary import Operator, Place, TraceSummary

from .machines import NO_GPU, NOBODY, WINDOW, alone, found, h200, missing
from .observations import attribution, observed, timing

NATIVE, BY_PTX = {"torch.runs_natively": True}, {"torch.runs_natively": False}
REGEX = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "torch.version": "2.11.0+cu130"}

UNFIT = {
    "packed.folder": "/opt/caches",
    "packed.dangerous": [],
    "packed.useless": ["torch: packed with 2.11.0, here 2.13.0"],
    "packed.variables": [],
}
FIRES = {
    "unpacked-caches-unfit": [
        (UNFIT, "medium"),
        (UNFIT | {"packed.dangerous": ["processor: packed with avx512f, here without"]}, "high"),
        (UNFIT | {"packed.useless": [], "packed.variables": ["TORCHINDUCTOR_FREEZING: 1"]}, "medium"),
    ],
    "launch-blocking-on": [
        ({"CUDA_LAUNCH_BLOCKING": "1"}, "high"),
        (NO_GPU | {"CUDA_LAUNCH_BLOCKING": "1"}, "low"),
    ],
    "no-memory-caching-on": [
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "high"),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}, "high"),  # torch asks only whether it is set
    ],
    "omp-threads-1": [
        ({"OMP_NUM_THREADS": "1"}, "low"),
        (NO_GPU | {"OMP_NUM_THREADS": "1"}, "medium"),
    ],
    "tf32-env-override": [
        ({"NVIDIA_TF32_OVERRIDE": "0"}, "medium"),
        ({"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}, "low"),
    ],
    "device-order": [
        ({"gpu.count": Unknown("the GPUs differ"), "gpu.order_known": False}, "low"),
        ({"gpu.count": 2, "gpu1.name": "NVIDIA T4", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "low"),
    ],
    "alloc-conf-both-names": [
        (
            {
                "PYTORCH_ALLOC_CONF": "expandable_segments:True",
                "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
            },
            "medium",
        ),
    ],
    "nccl-path-disabled": [
        ({"NCCL_P2P_DISABLE": "1"}, "low"),
        ({"NCCL_P2P_DISABLE": "1", "gpu.count": 2, "gpu.topology": ["0-1 NV18"]}, "high"),
        ({"NCCL_SHM_DISABLE": "1", "gpu.count": 2}, "medium"),
        ({"NCCL_P2P_LEVEL": "LOC", "gpu.count": 2}, "medium"),
    ],
    "debug-flags-left-on": [
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, "medium"),
        ({"NCCL_DEBUG": "TRACE"}, "medium"),
        (NO_GPU | {"NCCL_DEBUG": "TRACE"}, "low"),
        ({"TORCH_LOGS": "+dynamo"}, "low"),
        (NO_GPU | {"TORCH_COMPILE_DEBUG": "1"}, "medium"),
    ],
    "caches-disabled": [
        ({"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}, "medium"),
        ({"TORCHINDUCTOR_FX_GRAPH_CACHE": "0"}, "medium"),
    ],
    "bytecode-not-kept": [
        ({"torch.bytecode": False, "PYTHONDONTWRITEBYTECODE": "1"}, "medium"),
        ({"torch.bytecode": False, "torch.bytecode_writable": False}, "medium"),
    ],
    "driver-too-old": [({"torch.driver_ok": False, "gpu.cuda_driver": "12.4"}, "high")],
    "torch-without-cuda": [({"torch.cuda": None, "torch.version": "2.13.0+cpu"}, "high")],
    "ptx-jit-active": [
        (BY_PTX | {"torch.arch_list": ["sm_80", "compute_80"]}, "high"),
        (BY_PTX | {"torch.arch_list": ["sm_100"]}, "high"),
        ({"CUDA_FORCE_PTX_JIT": "1"}, "medium"),
    ],
    "jit-cache-too-small": [
        ({"CUDA_CACHE_MAXSIZE": "1000"}, "low"),
        (BY_PTX | {"CUDA_CACHE_MAXSIZE": "1000"}, "medium"),
        ({"CUDA_CACHE_MAXSIZE": "99999999999"}, "low"),
    ],
    "jit-cache-disabled": [
        ({"CUDA_CACHE_DISABLE": "1"}, "low"),
        (BY_PTX | {"CUDA_CACHE_DISABLE": "1"}, "high"),
        ({"torch.runs_natively": NOBODY, "CUDA_CACHE_DISABLE": "1"}, "medium"),
    ],
    "module-loading-eager": [({"CUDA_MODULE_LOADING": "EAGER"}, "medium")],
    "kineto-daemon-on": [
        ({"KINETO_USE_DAEMON": "1"}, "low"),
        ({"KINETO_USE_DAEMON": "0", "TEARDOWN_CUPTI": "0"}, "low"),  # Kineto asks only whether it is set
    ],
    "cublas-env-regex": [(REGEX, "medium")],
    "cublas-workspace-small": [
        ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, "medium"),
        ({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, "medium"),
    ],
}

SILENT = {
    "unpacked-caches-unfit": [{}, UNFIT | {"packed.useless": []}],
    "launch-blocking-on": [{}, {"CUDA_LAUNCH_BLOCKING": "0"}],
    "no-memory-caching-on": [{}],
    "omp-threads-1": [
        {},
        {"OMP_NUM_THREADS": "8"},
        {"OMP_NUM_THREADS": "1", "host.num_cores": 1},
        {"OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "16"},
        {"OMP_NUM_THREADS": "1", "window.tree_cpu_s_per_s": 15.8},  # the other cores have work already
    ],
    "tf32-env-override": [{}, {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0"}],
    "device-order": [{}, {"gpu.count": 2, "gpu1.name": "NVIDIA H200"}, NO_GPU],
    "alloc-conf-both-names": [
        {},
        {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
        {"PYTORCH_ALLOC_CONF": "a:1", "PYTORCH_CUDA_ALLOC_CONF": "a:1"},
    ],
    "nccl-path-disabled": [{}, {"NCCL_P2P_DISABLE": "0"}, {"NCCL_P2P_LEVEL": "NVL"}],
    "debug-flags-left-on": [
        {},
        {"NCCL_DEBUG": "WARN"},
        {"TORCH_LOGS": "recompiles"},
        {"TORCH_COMPILE_DEBUG": "0"},
    ],
    "caches-disabled": [{}, {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}],
    "bytecode-not-kept": [
        {},
        {"PYTHONDONTWRITEBYTECODE": "1"},  # it was compiled as it was installed
        {"torch.bytecode": False},  # the next start writes it
        {"torch.bytecode": False, "PYTHONDONTWRITEBYTECODE": ""},
    ],
    "driver-too-old": [{}, NO_GPU, {"torch.cuda": None}],
    "torch-without-cuda": [{}, NO_GPU, {"torch.cuda": None, "torch.version": "2.11.0+rocm6.4"}],
    "ptx-jit-active": [{}, NO_GPU],
    "jit-cache-too-small": [{}, {"CUDA_CACHE_MAXSIZE": "4294967296"}],
    "jit-cache-disabled": [{}, {"CUDA_CACHE_DISABLE": "0"}],
    "module-loading-eager": [{}, {"CUDA_MODULE_LOADING": "LAZY"}],
    "kineto-daemon-on": [{}, {"TEARDOWN_CUPTI": "0"}, {"KINETO_USE_DAEMON": "1", "TEARDOWN_CUPTI": "1"}],
    "cublas-env-regex": [
        {},
        REGEX | {"torch.version": "2.13.0+cu130"},
        REGEX | {"torch.version": "1.13.1"},
    ],
    "cublas-workspace-small": [
        {},
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"},
    ],
}

# A variable is known, or is not known to be set; where its fact is Unknown the rule cannot tell.
UNKNOWN = {
    "unpacked-caches-unfit": [
        (UNFIT | {"packed.dangerous": NOBODY}, "packed.dangerous"),
        (UNFIT | {"packed.useless": NOBODY}, "packed.useless"),
    ],
    "launch-blocking-on": [({"CUDA_LAUNCH_BLOCKING": NOBODY}, "env.CUDA_LAUNCH_BLOCKING")],
    "no-memory-caching-on": [
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": NOBODY}, "env.PYTORCH_NO_CUDA_MEMORY_CACHING")
    ],
    "omp-threads-1": [({"OMP_NUM_THREADS": "1", "host.num_cores": NOBODY}, "host.num_cores")],
    "tf32-env-override": [({"NVIDIA_TF32_OVERRIDE": NOBODY}, "env.NVIDIA_TF32_OVERRIDE")],
    "device-order": [({"gpu.count": NOBODY}, "gpu.count")],
    "alloc-conf-both-names": [({"PYTORCH_ALLOC_CONF": NOBODY}, "env.PYTORCH_ALLOC_CONF")],
    "nccl-path-disabled": [({"NCCL_P2P_DISABLE": NOBODY}, "env.NCCL_P2P_DISABLE")],
    "debug-flags-left-on": [({"NCCL_DEBUG": NOBODY}, "env.NCCL_DEBUG")],
    "caches-disabled": [({"TRITON_ALWAYS_COMPILE": NOBODY}, "env.TRITON_ALWAYS_COMPILE")],
    "bytecode-not-kept": [
        ({"torch.bytecode": NOBODY}, "torch.bytecode"),
        ({"torch.bytecode": False, "torch.bytecode_writable": NOBODY}, "torch.bytecode_writable"),
    ],
    "driver-too-old": [
        ({"torch.driver_ok": NOBODY}, "torch.driver_ok"),
        ({"torch.cuda": NOBODY}, "torch.cuda"),
    ],
    "torch-without-cuda": [({"gpu.count": NOBODY}, "gpu.count"), ({"torch.cuda": NOBODY}, "torch.cuda")],
    "ptx-jit-active": [({"torch.runs_natively": NOBODY}, "torch.runs_natively")],
    "jit-cache-too-small": [({"CUDA_CACHE_MAXSIZE": NOBODY}, "env.CUDA_CACHE_MAXSIZE")],
    "jit-cache-disabled": [({"CUDA_CACHE_DISABLE": NOBODY}, "env.CUDA_CACHE_DISABLE")],
    "module-loading-eager": [({"CUDA_MODULE_LOADING": NOBODY}, "env.CUDA_MODULE_LOADING")],
    "kineto-daemon-on": [
        ({"KINETO_USE_DAEMON": NOBODY}, "env.KINETO_USE_DAEMON"),
        ({"KINETO_USE_DAEMON": "1", "TEARDOWN_CUPTI": NOBODY}, "env.TEARDOWN_CUPTI"),
    ],
    "cublas-env-regex": [(REGEX | {"torch.version": NOBODY}, "torch.version")],
    "cublas-workspace-small": [({"CUBLAS_WORKSPACE_CONFIG": NOBODY}, "env.CUBLAS_WORKSPACE_CONFIG")],
}


def cases(table):
    return [
        pytest.param(id_, case, id=f"{id_}-{at}")
        for id_, rows in table.items()
        for at, case in enumerate(rows)
    ]


@pytest.mark.parametrize(("id_", "case"), cases(FIRES))
def test_a_rule_on_the_environment_fires(id_, case):
    changes, severity = case
    (finding,) = found(id_, changes)
    assert (finding.id, finding.severity) == (id_, severity)
    assert finding.claim.endswith(".")
    assert finding.evidence
    assert finding.remedy


@pytest.mark.parametrize(("id_", "changes"), cases(SILENT))
def test_a_rule_on_the_environment_is_silent(id_, changes):
    assert found(id_, changes) == []


@pytest.mark.parametrize(("id_", "case"), cases(UNKNOWN))
def test_a_rule_on_the_environment_cannot_tell(id_, case):
    changes, what = case
    assert missing(id_, changes) == what


@pytest.mark.parametrize(("id_", "case"), cases(FIRES))
def test_the_variables_that_a_rule_asks_for_are_those_that_the_probe_reports(id_, case):
    variables = {name: str(value) for name, value in case[0].items() if "." not in name}
    assert {f"env.{name}" for name in variables} <= set(probe.environment.facts(variables))


@pytest.mark.parametrize(("id_", "case"), cases(FIRES))
def test_candidates_are_settings_that_exist(id_, case):
    (finding,) = found(id_, case[0])
    assert all(parse(str(setting)) == setting for setting in finding.candidates)


def test_every_rule_on_machines_has_a_case_in_which_it_fires_is_silent_and_cannot_tell():
    from . import test_machine_gpu as gpu
    from . import test_machine_host as host
    from . import test_startup_rules as startup

    ids = {each.id for each in all_rules().values() if each.scope == "machine"}
    for tables in (
        (FIRES, gpu.FIRES, host.FIRES, startup.FIRES),
        (SILENT, gpu.SILENT, host.SILENT, startup.SILENT),
        (UNKNOWN, gpu.UNKNOWN, host.UNKNOWN, startup.UNKNOWN),
    ):
        assert {id_ for table in tables for id_ in table} == ids


def test_a_healthy_machine_deserves_nothing_of_medium_severity():
    found_, unknown = examine(ObservationView(alone(h200())), "machine")
    assert found_ == []
    assert all(why.reason for why in unknown)


def test_a_healthy_machine_at_work_deserves_nothing_of_medium_severity():
    facts = h200(WINDOW | {"window.pcie_width": 16, "window.pcie_generation": 5})
    found_, _ = examine(
        ObservationView(observed(facts=facts, attributed=attribution(host=0.1, input=0.05))), "machine"
    )
    assert found_ == []


def test_two_gpus_of_different_kinds_as_the_probe_reports_them(tmp_path):
    from types import SimpleNamespace

    class NVMLError(Exception):
        value = 3

    names = ["NVIDIA H200", "NVIDIA T4"]
    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_ERROR_NOT_SUPPORTED=3,
        NVML_ERROR_LIBRARY_NOT_FOUND=12,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: "580.159.04",
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}",
        nvmlDeviceGetName=lambda gpu: names[gpu],
        nvmlDeviceGetMigMode=lambda gpu: [0, 0],
    )
    facts = probe.nvml.facts({}, nvml=nvml, dev=tmp_path)
    assert [finding.id for finding in found("device-order", facts)] == ["device-order"]


def test_environment_finding_names_who_set_a_variable():
    (finding,) = found(
        "launch-blocking-on",
        {"CUDA_LAUNCH_BLOCKING": "1", "env_from.CUDA_LAUNCH_BLOCKING": "inherited from pid 7 (bash)"},
    )
    assert finding.evidence == ["CUDA_LAUNCH_BLOCKING=1, inherited from pid 7 (bash)"]


def test_a_variable_that_the_program_set_has_its_place_in_the_program():
    change = EnvironmentChange("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "model.py", 134, "__init__")
    (finding,) = found("cublas-env-regex", {"torch.version": "2.11.0"}, environment_changes=[change])
    assert finding.where.function == "model.py(134): __init__"


def watched(id_, changes, *, operators=(), **fields):
    summary = TraceSummary(
        files=[],
        recorder="",
        verdict="",
        window_s=1.0,
        num_steps=10,
        step_source=None,
        **{
            name: []
            for name in (
                "causes",
                "devices",
                "gaps",
                "copies",
                "syncs",
                "allocations",
                "kernels",
                "communication",
            )
        },
        shares=None,
        ranks=None,
        operators=list(operators),
    )
    (finding,) = found(id_, changes, timed=timing(step_s=0.01), trace=summary, **fields)
    return finding


def test_launch_blocking_costs_at_most_the_idle_time_that_the_host_causes():
    finding = watched(
        "launch-blocking-on", {"CUDA_LAUNCH_BLOCKING": "1"}, attributed=attribution(host=0.3, transfer=0.1)
    )
    assert finding.share == pytest.approx(0.4)
    finding = watched("launch-blocking-on", {"CUDA_LAUNCH_BLOCKING": "1"}, attributed=attribution(host=0.005))
    assert finding.severity == "low"


def test_the_variable_of_cublas_costs_at_most_the_hosts_time_in_products():
    products = [
        Operator(name="aten::addmm", num=400, self_s=0.02),
        Operator(name="aten::add", num=9, self_s=5.0),
    ]
    finding = watched("cublas-env-regex", REGEX, operators=products, attributed=attribution(host=0.5))
    assert finding.share == pytest.approx(0.02 / 10 / 0.01)
    finding = watched("cublas-env-regex", REGEX, operators=products, attributed=attribution(host=0.05))
    assert finding.share == pytest.approx(0.05)  # the GPU is the limit for the rest


def test_cublas_variable_is_no_finding_when_determinism_is_asked_for():
    finding = watched("cublas-env-regex", REGEX, live={"live.deterministic_algorithms": True})
    assert finding.severity == "low"


def test_anomaly_detection_has_the_place_that_switches_it_on():
    live = {"live.anomaly_mode": True, "live.anomaly_place": "train.py:12"}
    finding = watched("debug-flags-left-on", {}, live=live, attributed=attribution(host=0.4))
    assert finding.where == Place("train.py:12")


def test_anomaly_detection_counts_as_a_flag_that_was_left_on():
    finding = watched(
        "debug-flags-left-on", {}, live={"live.anomaly_mode": True}, attributed=attribution(host=0.4)
    )
    assert (finding.claim, finding.severity) == ("Anomaly detection of autograd is on.", "high")
    # On the CPU the stack of each operator is part of the operator: nothing bounds it.
    assert isinstance(finding.share, Unknown)


def test_checking_each_collective_costs_at_most_the_exposed_communication():
    finding = watched(
        "debug-flags-left-on",
        {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        attributed=attribution(communication=0.3),
    )
    assert (finding.share, finding.severity) == (pytest.approx(0.3), "high")
    both = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "TORCH_COMPILE_DEBUG": "1"}
    finding = watched("debug-flags-left-on", both, attributed=attribution(communication=0.3))
    assert (isinstance(finding.share, Unknown), finding.severity) == (True, "medium")


def test_one_thread_costs_a_program_on_the_cpu_at_most_what_the_other_cores_could_take():
    finding = watched(
        "omp-threads-1",
        NO_GPU | {"OMP_NUM_THREADS": "1", "host.num_cores": 4},
        attributed=attribution(host=0.2),
    )
    assert finding.share == pytest.approx(0.8 * 3 / 4)


def test_caches_that_nothing_uses_are_of_low_severity():
    finding = watched("caches-disabled", {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"})
    assert finding.severity == "low"


def test_a_cache_folder_that_is_new_in_each_run_keeps_nothing():
    finding = watched("caches-disabled", {FRESH_CACHES: "TORCHINDUCTOR_CACHE_DIR"})
    assert finding.claim.startswith("Each start has a compile cache of its own")
    # The program writes it itself, after whatever it is started with.
    assert finding.candidates == []
    assert "TORCHINDUCTOR_CACHE_DIR" in finding.remedy
