"""Text becoming settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.knobs.setting_text import LARGEST
from dynotune.schema.errors import UsageError
from dynotune.schema.knob import Env


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
def test_setting_text_is_refused_with_a_hint_when_it_cannot_be_set(text, hint):
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
        assert knobs.parse(f"{knob.id}={number}").value == (
            str(number) if isinstance(knob.site, Env) else number
        )
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


@pytest.mark.parametrize(
    "name", ["CUDA_CACHE_MAXSIZE", "TORCHINDUCTOR_COMPILE_THREADS", "CUDA_CACHE_DISABLE"]
)
def test_a_variable_that_is_known_can_be_taken_away(name):
    assert knobs.parse(f"env.{name}=@unset").value == "@unset"
