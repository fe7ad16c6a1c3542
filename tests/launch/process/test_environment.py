"""The environment of a command under settings."""

import platform
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.launch.process import environment
from dynotune.schema.errors import CannotRunHere, UsageError

RUN, AGENT = Path("/runs/1"), environment.AGENT
NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"


def build(*settings, base=None, version=None):
    facts = {} if version is None else {"torch.version": version}
    chosen = [knobs.parse(text) for text in settings]
    return environment.build(chosen, base or {}, run_dir=RUN, facts=facts)


def test_without_settings_only_the_way_to_the_agent_is_added():
    base = {"PATH": "/bin", "PYTHONPATH": "/mine:/more"}
    env, plan = build(base=base)
    assert env == {
        "PATH": "/bin",
        "PYTHONPATH": f"{AGENT}/bootstrap:/mine:/more",
        "DYNOTUNE_RUN": "/runs/1",
    }
    assert plan == []
    assert base == {"PATH": "/bin", "PYTHONPATH": "/mine:/more"}


def test_a_dynotune_under_dynotune_does_not_name_its_folder_twice():
    env, _ = build(base={"PYTHONPATH": f"{AGENT}/bootstrap:/mine"})
    assert env["PYTHONPATH"] == f"{AGENT}/bootstrap:/mine"
    assert build(base={"PYTHONPATH": ""})[0]["PYTHONPATH"] == f"{AGENT}/bootstrap"


def test_variables_are_set_and_taken_away():
    env, plan = build("env.A=1", "env.B=@unset", "env.C=@unset", base={"B": "2"})
    assert env["A"] == "1"
    assert "B" not in env
    assert "C" not in env
    assert [(setting.knob, setting.value, setting.site) for setting in plan] == [
        ("env.A", "1", {"type": "env", "name": "A"}),
        ("env.B", "@unset", {"type": "env", "name": "B"}),
        ("env.C", "@unset", {"type": "env", "name": "C"}),
    ]


def test_every_setting_is_planned_with_its_site_in_plain_data():
    _, plan = build("loader.num_workers=4", "cudnn.benchmark=true", "compile.mode=default")
    assert [setting.site for setting in plan] == [
        {"type": "constructor", "targets": ["torch.utils.data.DataLoader"], "argument": "num_workers"},
        {"type": "attr", "path": "torch.backends.cudnn.benchmark"},
        {"type": "module", "action": "compile"},
    ]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.4.1", OLD),
        ("2.8.0+cu128", OLD),
        ("2.9.1", OLD),  # 2.9 leaves expandable_segments off under the new name
        ("2.10.0", NEW),
        ("2.13.0+cpu", NEW),
        (None, OLD),  # the old name works everywhere
    ],
)
def test_the_allocators_variable_has_the_name_that_this_torch_reads(version, name):
    env, plan = build("alloc.expandable_segments=true", version=version)
    assert env[name] == "expandable_segments:True"
    assert ({OLD, NEW} - {name}).pop() not in env
    assert plan[0].site["variable"] == name


@pytest.mark.parametrize("name", [OLD, NEW])
def test_allocator_keys_are_merged_with_those_already_set_under_either_name(name):
    base = {name: "max_split_size_mb:64, roundup_power2_divisions:[256:1,>:8],expandable_segments:False"}
    env, plan = build(
        "alloc.expandable_segments=true", "alloc.max_split_size_mb=128", base=base, version="2.11.0"
    )
    assert env[NEW] == "max_split_size_mb:128,roundup_power2_divisions:[256:1,>:8],expandable_segments:True"
    assert OLD not in env
    assert {setting.site["text"] for setting in plan} == {"True", "128"}


def test_both_names_with_different_values_are_a_fault_and_with_equal_ones_are_not():
    with pytest.raises(CannotRunHere, match="both set") as error:
        build("alloc.expandable_segments=true", base={OLD: "backend:native", NEW: "max_split_size_mb:64"})
    assert "Unset one" in error.value.hint
    env, _ = build("alloc.max_split_size_mb=64", base={OLD: "backend:native", NEW: "backend: native"})
    assert env[OLD] == "backend:native,max_split_size_mb:64"
    # Without an allocator setting it is the user's own affair.
    assert build(base={OLD: "a:1", NEW: "b:2"})[0][OLD] == "a:1"


@pytest.mark.parametrize(
    "settings",
    [
        ("env.A=1", "env.A=2"),
        ("loader.num_workers=1", "loader.num_workers=2"),
        ("alloc.max_split_size_mb=64", "alloc.max_split_size_mb=128"),
        ("env.PYTORCH_ALLOC_CONF=backend:native", "alloc.max_split_size_mb=64"),
        ("alloc.max_split_size_mb=64", "env.PYTORCH_CUDA_ALLOC_CONF=@unset"),
        ("env.LD_PRELOAD=/x.so", "host.malloc=system"),
    ],
)
def test_settings_that_set_the_same_thing_are_refused(settings):
    with pytest.raises(UsageError, match="both set"):
        build(*settings)


def test_the_system_malloc_takes_other_allocators_out_of_the_preloads_and_leaves_the_rest():
    base = {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2:/lib/libother.so /opt/libtcmalloc_minimal.so.4"}
    assert build("host.malloc=system", base=base)[0]["LD_PRELOAD"] == "/lib/libother.so"
    assert "LD_PRELOAD" not in build("host.malloc=system")[0]
    assert "LD_PRELOAD" not in build("host.malloc=system", base={"LD_PRELOAD": "/x/libjemalloc.so"})[0]


def test_a_library_is_preloaded_before_what_was_preloaded_already(monkeypatch, tmp_path):
    library = tmp_path / "libjemalloc.so.2"
    library.touch()
    monkeypatch.setattr(environment, "_linker_cache", lambda: {"libjemalloc.so.2": library})
    env, _ = build("host.malloc=jemalloc", base={"LD_PRELOAD": "/lib/libother.so:/x/libtcmalloc.so.4"})
    assert env["LD_PRELOAD"] == f"{library}:/lib/libother.so"


def test_a_library_that_is_not_installed_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setattr(environment, "_linker_cache", dict)
    monkeypatch.setattr(environment, "_library_folders", tuple)
    with pytest.raises(CannotRunHere, match="tcmalloc is not installed") as error:
        build("host.malloc=tcmalloc")
    assert "libgoogle-perftools4" in error.value.hint


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc")
def test_a_library_of_this_architecture_is_found():
    found = environment.find_library(("libnever.so.0", "libc.so.6"))
    assert found is not None
    assert found.name == "libc.so.6"


_key = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)
_value = st.one_of(
    st.from_regex(r"[A-Za-z0-9.]{1,6}", fullmatch=True),
    st.from_regex(r"\[[0-9]{1,3}:[0-9](,[0-9]{1,3}:[0-9]){0,2}\]", fullmatch=True),
)


@given(st.dictionaries(_key, _value), st.sampled_from([OLD, NEW]))
def test_merging_keeps_every_other_key_as_it_was(conf, name):
    text = " , ".join(f"{key}:{value}" for key, value in conf.items())
    env, _ = build("alloc.max_split_size_mb=64", base={name: text}, version="2.13.0")
    expected = ",".join(f"{key}:{value}" for key, value in (conf | {"max_split_size_mb": "64"}).items())
    assert env[NEW] == expected
