"""`dynotune run`: settings and recipes, and nothing that the command would notice."""

from __future__ import annotations

import shutil
import subprocess
import sys

import msgspec
import pytest

from dynotune.schema import document
from dynotune.schema.account import RunAccount

from .test_bad_input import said

PYTHON = sys.executable
RECIPE = '[recipe]\nschema = "dynotune.recipe/2"\n'


@pytest.fixture
def run(user):
    def run(*words, program="import os; print(os.environ.get('A'))"):
        user.write("show.py", program)
        return user.types("run", "--run-dir", str(user.runs), *words, "--", PYTHON, "show.py")

    return run


def recipe(user, text):
    return str(user.write("recipe.toml", text))


def test_the_command_gets_the_settings(run):
    done = run("--set", "env.A=1 2")
    said(done, 0)
    assert done.stdout == "1 2\n"


def test_two_values_for_one_knob_are_refused(run):
    said(run("--set", "env.A=1", "--set", "env.A=2"), 2, "env.A=1 and env.A=2")


def test_the_command_inherits_exactly_the_environment_that_dynotune_was_given(user, run):
    """In the C locale Python puts LC_CTYPE into its own environment, of which the shell knows nothing."""
    user.env |= {"LC_ALL": "", "LANG": "C"}
    user.env.pop("LC_CTYPE", None)
    done = run(program="print(open('/proc/self/environ').read().replace('\\0', '\\n'), end='')")
    given = dict(user.env)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert found.pop("PYTHONPATH").endswith(given.pop("PYTHONPATH"))
    assert found.pop("DYNOTUNE_RUN").startswith(str(user.runs))
    assert found == given


def test_a_good_recipe_is_applied_and_the_command_line_wins(user, run):
    good = recipe(user, RECIPE + '[settings]\n"env.OMP_SCHEDULE" = 3\n"loader.num_workers" = 2\n')
    program = "import os; print(os.environ.get('OMP_SCHEDULE'))"
    assert run("--recipe", good, program=program).stdout == "3\n"
    assert run("--recipe", good, "--set", "env.OMP_SCHEDULE=4", program=program).stdout == "4\n"


@pytest.mark.long
def test_a_variable_that_is_not_known_is_applied_once_the_user_types_it(user, run):
    own = recipe(user, RECIPE + '[settings]\n"env.A" = "1 2"\n')
    left_out = run("--recipe", own)
    said(left_out, 0, "recipe.toml: not applied", "type it yourself:", "--set 'env.A=1 2'")
    assert left_out.stdout == "None\n"
    assert run("--recipe", own, "--set", "env.A=1 2").stdout == "1 2\n"
    strict = run("--strict", "--recipe", own)
    said(strict, 3, "recipe.toml: not applied", "--set 'env.A=1 2'")
    assert strict.stdout == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/tmp/evil.so"),
        pytest.param("PYTHONSTARTUP", "x.py", marks=pytest.mark.long),
        pytest.param("PATH", "/tmp", marks=pytest.mark.long),
        pytest.param("NCCL_NET_PLUGIN", "evil", marks=pytest.mark.long),
        pytest.param("TRITON_CACHE_DIR", "/tmp", marks=pytest.mark.long),
        pytest.param("NODE_OPTIONS", "--require evil", marks=pytest.mark.long),
        pytest.param("CUBLAS_WORKSPACE_CONFIG", "/tmp", marks=pytest.mark.long),
        pytest.param("OPENSSL_CONF", "evil.cnf", marks=pytest.mark.long),
        ("BROWSER", "evil"),
    ],
)
def test_run_keeps_settings_that_could_load_foreign_code_from_the_command(user, run, name, value):
    program = f"import os; print(os.environ.get('OMP_DYNAMIC'), os.environ.get('{name}') == {value!r})"
    hostile = recipe(user, f'{RECIPE}[settings]\n"env.OMP_DYNAMIC" = true\n"env.{name}" = "{value}"\n')
    done = run("--recipe", hostile, program=program)
    said(done, 0, "foreign code", f"env.{name}=")
    assert done.stdout == "true False\n"


@pytest.mark.parametrize("where", [pytest.param("absolute", marks=pytest.mark.long), "relative"])
def test_a_recipe_does_not_load_a_shared_object_through_a_variable(user, run, where):
    """As it was seen: the constructor of an OpenSSL engine ran as soon as the command imported ssl."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler to make a shared object with")
    source = (
        "#include <stdio.h>\n__attribute__((constructor)) static void load(void) { "
        'fclose(fopen("LOADED", "w")); }\n'
    )
    library = user.cwd / "evil.so"
    user.write("evil.c", source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, user.cwd / "evil.c"], check=True)
    named = str(library) if where == "absolute" else "./evil.so"
    conf = "openssl_conf = init\n[init]\nengines = engines\n[engines]\nevil = it\n"
    user.write("evil.cnf", f"{conf}[it]\nengine_id = evil\ndynamic_path = {named}\ninit = 1\n")
    folder = user.cwd if where == "absolute" else "."
    hostile = {"OPENSSL_CONF": f"{folder}/evil.cnf", "LD_PRELOAD": named, "LD_AUDIT": named}
    lines = "".join(f'"env.{name}" = "{value}"\n' for name, value in hostile.items())
    program = "import ssl, ctypes; ssl.create_default_context(); print('done')"
    done = run("--recipe", recipe(user, f"{RECIPE}[settings]\n{lines}"), program=program)
    assert done.stdout == "done\n"
    assert not (user.cwd / "LOADED").exists()
    # The object is one that loads: typed by the user, it does.
    assert run("--set", f"env.LD_PRELOAD={library}", program=program).stdout == "done\n"
    assert (user.cwd / "LOADED").exists()


@pytest.mark.parametrize(
    ("settings", "code", "text"),
    [
        ('"loader.num_worker" = 2', 2, "loader.num_workers"),
        ('"loader.num_workers" = "; rm -rf ~"', 2, "a whole number"),
        ('"env.PYTHONPATH" = "/tmp"', 2, "dynotune sets PYTHONPATH itself"),
        ('"env.A" = "\\u001b]0;title\\u0007"', 2, "do not print"),
        ('"env.A=B" = "x"', 2, "is no knob"),
        ('"env.A" = [1]', 3, "is not a recipe"),
        ('"env.A" = ', 3, "is not TOML"),
    ],
)
def test_a_hostile_recipe_is_refused_before_the_command_starts(user, run, settings, code, text):
    done = run("--recipe", recipe(user, f"{RECIPE}[settings]\n{settings}\n"))
    said(done, code, text, "recipe.toml")
    assert done.stdout == ""
    assert "\x1b]0" not in done.stderr


def test_variables_that_only_tune_are_a_recipes_to_set(user, run):
    tuning = {
        "OMP_NUM_THREADS": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTHONHASHSEED": "1",
        "NCCL_ALGO": "Ring,Tree",
        "CUDA_MODULE_LOADING": "LAZY",
    }
    lines = "".join(f'"env.{name}" = "{value}"\n' for name, value in tuning.items())
    program = f"import os; print([name for name, value in {tuning}.items() if os.environ.get(name) != value])"
    done = run("--recipe", recipe(user, f"{RECIPE}[settings]\n{lines}"), program=program)
    assert (done.stdout, "not applied" in done.stderr) == ("[]\n", False)


@pytest.mark.parametrize(
    ("text", "said_text"),
    [
        ('[recipe]\nschema = "dynotune.recipe/3"\n[settings.loader]\nnum_workers = 2\n', "dynotune.recipe/3"),
        ("[settings]\n", "is not a dynotune.recipe/2"),
        ("x = " + "[" * 100_000, "is not TOML"),
    ],
    ids=["newer", "headless", "deep"],
)
def test_run_refuses_a_recipe_that_is_none_or_of_another_version(user, run, text, said_text):
    said(run("--recipe", recipe(user, text)), 3, said_text)


def test_a_recipe_that_is_not_there_is_told(run):
    said(run("--recipe", "nowhere.toml"), 3, "Cannot read nowhere.toml")


def test_a_setting_that_could_not_be_read_back_is_told_and_changes_no_exit_code(run):
    done = run("--set", "loader.num_workers=2", program="raise SystemExit(5)")
    said(done, 5, "loader.num_workers: could not be read back")


def test_the_runs_record_is_written_where_it_is_asked_for(user, run):
    said(run("--json", "run.json"), 0)
    assert msgspec.json.decode((user.cwd / "run.json").read_bytes())["schema"] == "dynotune.run/2"


def test_a_record_that_cannot_be_written_changes_no_exit_code(user, run):
    program = "import os, pathlib\npathlib.Path('out').mkdir()\nos._exit(6)"
    said(run("--json", "out", program=program), 6, "Cannot write out")


def test_a_command_that_is_not_found_is_told(user):
    said(user.types("run", "--", "pythn-of-nobody"), 2, "Command not found")


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -TERM $$", -15), ("true", 0)])
def test_the_exit_is_the_commands(user, script, code):
    assert user.types("run", "--run-dir", str(user.runs), "--", "bash", "-c", script).returncode == code


def test_the_output_is_the_commands(user):
    done = user.types("run", "--run-dir", str(user.runs), "--", "bash", "-c", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_run_says_why_memory_ran_out_after_the_commands_own_error(run):
    pytest.importorskip("torch")
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB"
    done = run(
        program=f"import sys, torch\nsys.tracebacklimit = 0\nraise torch.OutOfMemoryError({message!r})"
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "dynotune: The device's memory is full: 2.00 GiB more was asked for." in done.stderr


@pytest.mark.long
def test_a_failure_that_the_program_gets_over_is_not_told(run):
    pytest.importorskip("torch")
    program = (
        "import torch\ntry:\n    raise torch.OutOfMemoryError('x')\nexcept torch.OutOfMemoryError:\n "
        "   print('over')"
    )
    done = run(program=program)
    said(done, 0)
    assert "dynotune:" not in done.stderr


# Without what may change results

ROUNDS = '"compile.mode" = "default"\n'
FORGED = """[[proof]]
knob = "compile.mode"
value = "default"
speedup = 2.0
ci = [1.9, 2.1]
num_pairs = 4
effect = "exact"
"""


def test_exact_leaves_out_settings_that_round_and_applies_the_others(user, run):
    both = recipe(user, f'{RECIPE}[settings]\n{ROUNDS}"env.CUDA_MODULE_LOADING" = "LAZY"\n')
    done = run("--exact", "--recipe", both, program="import os; print(os.environ['CUDA_MODULE_LOADING'])")
    said(done, 0, "--exact leaves out compile.mode=default: results may differ by rounding")
    assert done.stdout == "LAZY\n"


@pytest.mark.parametrize("proof", ["", FORGED], ids=["unmarked", "forged"])
def test_the_command_runs_as_it_is_when_exact_leaves_nothing_of_a_recipe(user, run, proof):
    done = run(
        "--exact", "--recipe", recipe(user, f"{RECIPE}[settings]\n{ROUNDS}{proof}"), program="print('ran')"
    )
    said(done, 0, "--exact leaves out compile.mode=default", "nothing of", "the command runs as it is")
    assert done.stdout == "ran\n"


def test_exact_is_refused_when_the_user_sets_what_rounds_or_gives_no_recipe(user, run):
    exact = recipe(user, f'{RECIPE}[settings]\n"env.CUDA_MODULE_LOADING" = "LAZY"\n')
    said(
        run("--exact", "--recipe", exact, "--set", "compile.mode=default"),
        2,
        "--exact forbids compile.mode=default",
    )
    said(run("--exact"), 2, "--exact needs --recipe")


def test_account_is_printed_beside_the_output_and_kept_when_asked(user, run):
    done = run("--account", program="import csv; print('out'); raise SystemExit(3)")
    assert (done.returncode, done.stdout) == (3, "out\n")
    assert "whole run" in done.stderr and "No step was found." in done.stderr
    (kept,) = user.runs.glob("*/account.json")
    account = document.read(kept, RunAccount)
    assert sum(row.took_s for row in account.rows) == pytest.approx(account.wall_s)
    assert account.exit_code == 3
    shown = user.types("report", str(kept.parent))
    assert "whole run" in shown.stdout
