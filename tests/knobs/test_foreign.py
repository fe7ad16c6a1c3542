"""Settings from elsewhere: what is let through, and what is left for the user to type."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dynotune import knobs
from dynotune.knobs import foreign
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
    known = [name for name in foreign._ALLOWED if not knobs.must_be_typed(Setting(f"env.{name}", value))]
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
        assert name in foreign._ALLOWED or (name in foreign._DEBUGGING and value == "@unset")
        assert value == "@unset" or ("/" not in value and value.isascii() and value.isprintable())
    # What the user types is applied as it is.
    assert knobs.check([setting], [setting]) == ([setting], [])
