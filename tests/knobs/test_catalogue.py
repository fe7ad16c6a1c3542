"""The catalogue of knobs."""

import subprocess
import sys

import pytest

from dynotune import knobs
from dynotune.agent.facts import live
from dynotune.doctor import all_rules
from dynotune.schema.knob import ANY_VALUE, AllocConf, Constructor, Method, by_value, spelled
from dynotune.schema.loader import Loader
from dynotune.schema.model import Model, Optimizer
from dynotune.schema.setting import Setting


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


def test_live_facts_of_knobs_are_facts_that_the_agent_gives():
    torch = pytest.importorskip("torch")
    given = {f"live.{name}" for name in (*live.facts(torch), "autocast_dtypes")}
    given |= {f"loaders.{name}" for name in Loader.__struct_fields__}
    given |= {f"optimizers.{name}" for name in Optimizer.__struct_fields__}
    given |= {f"models.{name}" for name in Model.__struct_fields__}
    assert {knob.live_fact for knob in knobs.all_knobs()} - {""} <= given | {"compilation.modes"}


def test_tables_of_a_knob_name_only_its_values():
    for knob in knobs.all_knobs():
        tables = [knob.python, knob.rounding, *(trainer.values for trainer in knob.trainers.values())]
        named = {name for table in tables if isinstance(table, dict) for name in table} - {ANY_VALUE}
        named |= {spelled(value) for value in (*knob.words.values(), *knob.live_values.values())}
        for value in named:
            assert knobs.parse(f"{knob.id.replace('NAME', 'x')}={value}"), knob.id


def test_knob_with_tables_serves_each_of_its_values_in_them():
    """A new value that is missing in one of its knob's tables would have no line of code, or no tolerance."""
    for knob in knobs.all_knobs():
        for value in (knob.values or (True, False)) if knob.python else ():
            assert by_value(knob.python, value), f"{knob.id}={value}"


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
    """.split(),  # noqa: E501, SIM905
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
def test_must_be_typed_depends_on_the_variable_and_its_value(setting, typed):
    assert knobs.must_be_typed(setting) == typed


def test_recipe_may_set_all_variables_that_the_doctor_offers():
    """Else a recipe that tune writes by itself could not be applied."""
    offered = [text.partition("=") for rule in all_rules().values() for text in rule.candidates]
    variables = [Setting(knob, value or "1") for knob, _, value in offered if knob.startswith("env.")]
    assert len(variables) > 20
    assert not [setting for setting in variables if knobs.must_be_typed(setting)]
