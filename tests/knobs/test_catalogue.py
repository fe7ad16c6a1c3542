"""The catalogue, and text becoming settings."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.doctor import all_rules
from dynotune.knobs.catalogue import LARGEST
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.knob import AllocConf, Constructor, Env, Method
from dynotune.schema.setting import Setting

GPU = {
    "gpu.count": 1,
    "gpu.compute_capability": "9.0",
    "gpu.name": "NVIDIA H200",
    "host.num_cores": 2,
    "torch.version": "2.11.0+cu130",
    "torch.cuda": "13.0",
    "platform": "Linux",
}
NO_GPU = {"gpu.count": 0, "host.num_cores": 2, "torch.version": "2.13.0+cpu", "torch.cuda": None}


def test_every_knob_has_its_own_name_a_source_and_a_reason_where_it_may_not_apply():
    everything = knobs.all_knobs()
    assert len({knob.id for knob in everything}) == len(everything)
    for knob in everything:
        assert knob.source.startswith("https://"), knob.id
        assert knob.doc.endswith("."), knob.id
        assert not knob.hurts or knob.hurts.endswith("."), knob.id
        assert (knob.applies is None) == (knob.unless == ""), knob.id
        assert knobs.get(knob.id) is knob or knob.id in ("env.NAME", "arg.NAME")


PROMISED = """
    loader.num_workers loader.pin_memory loader.persistent_workers loader.prefetch_factor loader.in_order
    loader.multiprocessing_context decode.backend
    transfer.non_blocking matmul.fp32_precision precision.autocast
    cudnn.benchmark cudnn.deterministic determinism.algorithms layout.channels_last compile.mode
    optimizer.fused host.num_threads host.interop_threads host.malloc
    alloc.expandable_segments alloc.max_split_size_mb alloc.backend env.ANYTHING
"""


@pytest.mark.parametrize("knob_id", PROMISED.split())
def test_the_knobs_that_were_promised_are_there(knob_id):
    assert knobs.get(knob_id).id == knob_id


def test_every_knob_applies_on_a_recent_gpu_machine():
    for knob in knobs.all_knobs():
        knobs.check_applies(Setting(knob.id, True), GPU)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("loader.num_workers=4", 4),
        ("loader.pin_memory=true", True),
        ("loader.pin_memory=Off", False),
        ("compile.mode=Reduce-Overhead", "reduce-overhead"),
        ("alloc.backend=cudamallocasync", "cudaMallocAsync"),
        ("alloc.garbage_collection_threshold=.8", 0.8),
        ("alloc.roundup_power2_divisions=[256:1,512:2,>:8]", "[256:1,512:2,>:8]"),
        ("env.A=b=c", "b=c"),
        ("env.A=", ""),
        ("env.A= spaces count ", " spaces count "),
        ("env.A=@unset", "@unset"),
    ],
)
def test_a_setting_is_parsed_into_its_knobs_type(text, value):
    setting = knobs.parse(text)
    assert setting.value == value
    assert type(setting.value) is type(value)
    assert knobs.parse(str(setting)) == setting


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("loader.num_workers=-1", "0 or more"),
        ("loader.num_workers=two", "whole number"),
        ("loader.num_workers=2.5", "whole number"),
        ("loader.prefetch_factor=0", "1 or more"),
        ("cudnn.benchmark=maybe", "true or false"),
        ("compile.mode=fast", "reduce-overhead"),
        ("compile.mode=@unset", "off, default"),
        ("alloc.garbage_collection_threshold=nan", "a number"),
        ("alloc.roundup_power2_divisions=4,backend:native", "text"),
        ("loader.num_workers", "loader.num_workers=VALUE"),
        ("loader.num_worker=4", "loader.num_workers"),
        ("num_workers=4", "loader.num_workers"),
        ("pin_memory", "loader.pin_memory"),
        ("compile.mod=off", "compile.mode"),
        ("qqqq=1", "dynotune knobs"),
        ("env.=1", "env.NAME"),
        ("env.PYTHONPATH=/x", "shell"),
        ("env.DYNOTUNE_RUN=/x", "shell"),
        ("=", "dynotune knobs"),
    ],
)
def test_what_cannot_be_set_is_refused_with_what_can(text, hint):
    with pytest.raises(UsageError) as error:
        knobs.parse(text)
    assert hint in error.value.hint
    assert error.value.exit_code == 2


@given(st.text())
def test_any_text_is_a_setting_or_a_usage_error(text):
    try:
        setting = knobs.parse(text)
    except UsageError as error:
        assert error.message
    else:
        assert knobs.parse(str(setting)) == setting


@given(st.sampled_from([knob for knob in knobs.all_knobs() if knob.type == "int"]), st.integers())
def test_a_whole_number_is_taken_exactly_when_it_lies_within_the_bounds(knob, number):
    try:
        # A variable's value stays text.
        assert knobs.parse(f"{knob.id}={number}").value == (str(number) if isinstance(knob.site, Env) else number)
    except UsageError:
        assert number < knob.minimum or number > min(knob.maximum or LARGEST, LARGEST)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("env.CUDA_CACHE_MAXSIZE=4294967297", "from 0 to 4294967296, or @unset"),
        ("env.CUDA_CACHE_MAXSIZE=4G", "a whole number"),
        ("env.CUDA_CACHE_MAXSIZE=", "a whole number"),
        ("env.CUDA_CACHE_DISABLE=yes", "one of 0, 1"),
        ("env.CUDA_MODULE_LOADING=EAGR", "one of LAZY, EAGER, DEFAULT"),
        ("env.TORCHINDUCTOR_COMPILE_THREADS=0", "1 or more"),
    ],
)
def test_a_variable_that_is_known_takes_what_its_reader_understands(text, hint):
    with pytest.raises(UsageError) as error:
        knobs.parse(text)
    assert hint in error.value.hint


@pytest.mark.parametrize("name", ["CUDA_CACHE_MAXSIZE", "TORCHINDUCTOR_COMPILE_THREADS", "CUDA_CACHE_DISABLE"])
def test_a_variable_that_is_known_can_be_taken_away(name):
    assert knobs.parse(f"env.{name}=@unset").value == "@unset"


@pytest.mark.parametrize(
    ("text", "facts", "missing"),
    [
        ("loader.pin_memory=true", NO_GPU | {"torch.cuda": "13.0"}, "none was found"),
        ("transfer.non_blocking=true", NO_GPU | {"torch.cuda": "13.0"}, "none was found"),
        ("alloc.expandable_segments=true", GPU | {"torch.cuda": None}, "built without CUDA"),
        ("matmul.fp32_precision=high", GPU | {"gpu.compute_capability": "7.5"}, "8.0"),
        ("loader.in_order=false", GPU | {"torch.version": "2.5.1"}, "2.6"),
        ("host.malloc=jemalloc", GPU | {"platform": "Darwin"}, "Linux"),
    ],
)
def test_a_setting_that_cannot_work_here_is_refused_with_what_is_missing(text, facts, missing):
    with pytest.raises(CannotRunHere, match=missing):
        knobs.check_applies(knobs.parse(text), facts)


@pytest.mark.parametrize("version", ["2.6.0", "2.10.0+cu130", "2.15.0"])
def test_versions_are_compared_as_numbers(version):
    knobs.check_applies(knobs.parse("loader.in_order=false"), {"torch.version": version})
    knobs.check_applies(knobs.parse("matmul.fp32_precision=high"), {"gpu.compute_capability": "12.0"})


@pytest.mark.parametrize("knob", knobs.all_knobs(), ids=lambda knob: knob.id)
def test_what_is_not_known_is_left_to_the_readback(knob):
    knobs.check_applies(Setting(knob.id, True), {})
    knobs.check_applies(Setting(knob.id, True), dict.fromkeys(knob.needs, Unknown("no driver")))


def test_a_value_that_needs_a_package_is_refused_where_it_is_known_to_be_missing():
    python = {"python.version": "3.12.1"}
    opencv = knobs.parse("decode.backend=opencv")
    for facts in ({}, {"python.version": Unknown("no answer")}, python | {"package.opencv-python-headless": "5.0"}):
        knobs.check_applies(opencv, facts)
    with pytest.raises(CannotRunHere, match="opencv-python or opencv-contrib-python is not installed"):
        knobs.check_applies(opencv, python | {"package.pillow": "13.0"})


def test_more_workers_than_cores_are_warned_about_and_not_refused():
    setting = knobs.parse("loader.num_workers=8")
    knobs.check_applies(setting, GPU)
    assert "only 2" in knobs.caution(setting, GPU)
    assert knobs.caution(knobs.parse("loader.num_workers=2"), GPU) == ""
    assert knobs.caution(setting, {}) == ""
    assert knobs.caution(setting, {"host.num_cores": Unknown("no cgroup")}) == ""
    assert knobs.caution(knobs.parse("loader.prefetch_factor=8"), GPU) == ""


def test_the_paths_that_sites_name_exist_in_torch():
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch.distributed.fsdp")  # `import torch` alone does not bring it
    for knob in knobs.all_knobs():
        for path in _paths(knob.site):
            found = torch
            for name in path.split(".")[1:]:
                found = getattr(found, name)


def _paths(site):
    if isinstance(site, Constructor | Method):
        return site.targets
    return [getattr(site, field) for field in ("path", "set", "get") if hasattr(site, field)]


def test_every_allocator_key_is_one_that_torch_knows():
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None:
        pytest.skip("a build without CUDA knows the keys of both allocators only")
    torch.zeros(1, device="cuda")
    for knob in knobs.all_knobs():
        if isinstance(knob.site, AllocConf) and knob.type == "bool":
            torch._C._accelerator_setAllocatorSettings(f"{knob.site.key}:False")


def test_the_catalogue_is_read_without_torch_and_without_heavy_modules():
    code = "import sys, dynotune.knobs; print(sorted({'torch', 'numpy', 'scipy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "name",
    """
    LD_PRELOAD PYTHONPATH_ PYTHONSTARTUP PATH HOME NCCL_NET_PLUGIN NCCL_NET OPENSSL_CONF OPENSSL_MODULES NODE_OPTIONS
    PERL5OPT RUBYOPT JAVA_TOOL_OPTIONS TRITON_CACHE_MANAGER TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH
    SSL_CERT_FILE MPICC CC MALLOC_CONF OMP_TOOL_LIBRARIES TORCH_LOGS NCCL_DEBUG_FILE PYTORCH_TUNABLEOP_FILENAME
    HF_ENDPOINT https_proxy A_VARIABLE_OF_TOMORROW omp_num_threads
    """.split(),  # noqa: SIM905
)
def test_only_the_user_sets_a_variable_that_is_not_known_to_do_nothing_but_tune(name):
    assert knobs.must_be_typed(Setting(f"env.{name}", "1"))


@pytest.mark.parametrize(
    ("setting", "typed"),
    [
        (Setting("env.OMP_NUM_THREADS", "4"), False),
        (Setting("env.CUBLAS_WORKSPACE_CONFIG", ":4096:8"), False),
        (Setting("env.CUDA_MODULE_LOADING", "EAGER"), False),
        (Setting("env.CUDA_LAUNCH_BLOCKING", "@unset"), False),
        (Setting("env.TEARDOWN_CUPTI", "1"), False),
        (Setting("env.TEARDOWN_CUPTI", "evil.so"), True),
        (Setting("env.TORCH_LOGS", "@unset"), False),
        (Setting("env.MALLOC_PERTURB_", "@unset"), False),
        (Setting("env.TORCH_NCCL_DESYNC_DEBUG", "@unset"), False),
        (Setting("env.CUDA_FORCE_PTX_JIT", "@unset"), False),
        (Setting("env.LD_PRELOAD", "@unset"), True),
        (Setting("env.OMP_PLACES", "/tmp/x"), True),
        (Setting("env.OMP_NUM_THREADS", "evil.so"), True),
        (Setting("env.CUBLAS_WORKSPACE_CONFIG", "evil"), True),
        (Setting("env.PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512"), False),
        (Setting("arg.batch", "32"), False),
        (Setting("arg.amp", "true"), False),
        (Setting("arg.config", "evil.py"), True),
        (Setting("arg.option", "--load=evil"), True),
        (Setting("loader.num_workers", 4), False),
        (Setting("host.malloc", "jemalloc"), False),
    ],
    ids=str,
)
def test_what_a_recipe_may_set_depends_on_the_variable_and_its_value(setting, typed):
    assert knobs.must_be_typed(setting) == typed


def test_what_the_doctor_offers_a_recipe_may_set():
    """Else a recipe that tune writes by itself could not be applied."""
    offered = [text.partition("=") for rule in all_rules().values() for text in rule.candidates]
    variables = [Setting(knob, value or "1") for knob, _, value in offered if knob.startswith("env.")]
    assert len(variables) > 20
    assert not [setting for setting in variables if knobs.must_be_typed(setting)]
