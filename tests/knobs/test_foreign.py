"""Settings from elsewhere: what is let through, and what is left for the user to type."""

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.knobs import foreign
from dynotune.schema.knob import OWN_VALUES
from dynotune.schema.setting import Setting

NAMES_OF_CODE = (
    "evil.so",
    "./evil.so",
    "../evil.so",
    "/tmp/evil.so",
    "evil",
    "evil:Manager",
    "evil.py",
    "file:///tmp/evil.so",
    "--require=evil",
    "$PWD/evil",
    "~/evil",
)


@pytest.mark.parametrize("value", NAMES_OF_CODE)
def test_no_variable_of_a_recipe_names_a_file_of_code(value):
    """Words are values of a few variables, which read no file."""
    variables = [id_.removeprefix("env.") for id_ in knobs.allow_list() if id_.startswith("env.")]
    known = [name for name in variables if not knobs.must_be_typed(Setting(f"env.{name}", value))]
    words = {"KMP_AFFINITY", "NCCL_ALGO", "NCCL_PROTO", "OMP_PLACES", "OMP_PROC_BIND", "OMP_SCHEDULE"}
    allocator = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}
    assert set(known) <= (words | allocator)
    assert not known or "/" not in value


def test_how_to_type_quotes_values_and_holds_no_secret():
    assert knobs.how_to_type(Setting("env.A", "1 $x")) == "--set 'env.A=1 $x'"
    assert knobs.how_to_type(Setting("env.HF_TOKEN", "abc")) == "--set env.HF_TOKEN=VALUE"


HOSTILE_NAMES = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(
            """
            LD_ PYTHON NCCL_ TORCH_ TORCHINDUCTOR_ TRITON_ CUDA_ CUBLAS_ KINETO_ OPENSSL_ SSL_ NODE_ PERL5 RUBY JAVA_
            GCONV_ GIT_ OMPI_ UCX_ FI_ GST_ QT_ MALLOC_ OMP_ KMP_ MKL_ HF_ XDG_ GLIBC_
            """.split()  # noqa: E501, SIM905
        ),
        st.from_regex(r"[A-Z0-9_]{1,24}", fullmatch=True),
    ),
)


@given(HOSTILE_NAMES | st.text(min_size=1), st.text())
@example("OPENSSL_CONF", "evil.cnf")
@example("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
@example("KINETO_CONFIG", "evil.conf")
@example("TRITON_CACHE_MANAGER", "evil:Manager")
@example("OMP_NUM_THREADS ", "4")
@example("OMP_NUM_THREADS", "4\n")
@example("OMP_NUM_THREADS", "٤")
@example("Omp_Num_Threads", "4")
def test_of_any_name_and_value_only_what_is_listed_is_let_through(name, value):
    setting = Setting(f"env.{name}", value)
    applied, left_out = knobs.check([setting])
    assert len(applied) + len(left_out) == 1
    if applied:
        allowed = knobs.allow_list()[f"env.{name}"]
        assert allowed.values or value == "@unset"
        assert value == "@unset" or ("/" not in value and value.isascii() and value.isprintable())
    # What the user types is applied as it is.
    assert knobs.check([setting], [setting]) == ([setting], [])


@pytest.fixture
def no_entry_allows_anything(monkeypatch):
    """The catalogue without any `from_elsewhere`."""
    silent = tuple(msgspec.structs.replace(knob, from_elsewhere="") for knob in knobs.all_knobs())
    monkeypatch.setattr(foreign, "all_knobs", lambda: silent)
    foreign.allow_list.cache_clear()
    yield
    foreign.allow_list.cache_clear()


@pytest.mark.parametrize("knob", knobs.all_knobs(), ids=lambda knob: knob.id)
def test_setting_from_elsewhere_is_refused_when_its_entry_does_not_say_from_elsewhere(
    knob, no_entry_allows_anything
):
    of_type = {"bool": (True, False), "int": (2,), "float": (0.5,), "str": ("1", "true")}
    for value in knob.values or of_type[knob.type]:
        assert knobs.must_be_typed(Setting(knob.id, value))


def test_entry_names_a_pattern_when_its_values_are_any_text():
    """`values` would let any text through, and text can name a file."""
    for knob in knobs.all_knobs():
        if knob.type == "str" and not knob.values:
            assert knob.from_elsewhere != OWN_VALUES, knob.id


@pytest.mark.parametrize("value", NAMES_OF_CODE)
def test_no_entry_lets_a_file_of_code_through_when_it_takes_text(value):
    """`evil` and `evil.py` are names of modules of a network, which quantization may leave out."""
    own = [id_ for id_ in knobs.allow_list() if not id_.startswith("env.")]
    accepted = [id_ for id_ in own if not knobs.must_be_typed(Setting(id_, value))]
    assert set(accepted) <= {"precision.quantize_keep"}
    assert not accepted or "/" not in value


@pytest.mark.parametrize("text", ["git.ref=main", "python=/usr/bin/python3", "env.CUDA_CACHE_PATH=4"])
def test_setting_that_chooses_code_is_typed_by_the_user(text):
    assert knobs.must_be_typed(knobs.parse(text))
