"""What a recipe is written as for others is read there as it was meant."""

from __future__ import annotations

import os
import re
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dynotune.recipes.export import export_parts
from dynotune.report import export as formats
from dynotune.report.export import Parts
from dynotune.schema import recipe as recipes
from dynotune.schema.diagnosis import Finding, NotKnown
from dynotune.schema.facts import Unknown
from dynotune.schema.knob import is_of_launch
from dynotune.schema.recipe import Header, Recipe
from dynotune.schema.setting import Setting

COMMAND = ["python", "train.py", "it's $HOME"]
NASTY = "'\"`$HOME $(id) \\ $$ %s {x} !! #; \U0001f600 é: - [a, *b]"
PRINTABLE = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=20)
NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("_", "IFS", "PATH")
)
VARIABLES = st.dictionaries(NAMES.map("V".__add__), PRINTABLE, max_size=6)


def made(*chosen, shm_size=None, command=COMMAND, **facts):
    settings_ = [Setting(knob, value) for knob, value in chosen]
    head = Header(recipes.SCHEMA, command=command, speedup=1.42, ci=(1.38, 1.47))
    return export_parts(Recipe(head, dict(chosen), facts=facts), settings_, "recipe.toml", shm_size)


def without_comments(text):
    return [line for line in text.splitlines() if line and not line.startswith("#")]


# Shell


def sourced(script, **env):
    """The environment that a POSIX shell has after it has read `script`."""
    done = subprocess.run(
        ["sh", "-ec", script + "\nenv -0"],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        check=True,
    )
    assert not done.stderr
    return dict(entry.decode().split("=", 1) for entry in done.stdout.split(b"\0") if entry)


@settings(max_examples=40, deadline=None)
@given(VARIABLES)
@example({"VA": NASTY, "VB": ""})
def test_a_shell_exports_exactly_what_the_recipe_sets(variables):
    before = sourced("")
    found = sourced(
        formats.shell(Parts(recipe="x'; touch $(id) \n.toml", command=["a\nb"], variables=variables))
    )
    assert {name: value for name, value in found.items() if name not in before} == variables


def test_a_shell_takes_away_what_the_recipe_takes_away():
    text = formats.shell(made(("env.GONE", "@unset"), ("env.A", NASTY)))
    found = sourced(text, GONE="1", KEPT="2")
    assert "GONE" not in found and found["A"] == NASTY and found["KEPT"] == "2"


def test_a_library_is_preloaded_before_those_that_are():
    text = formats.shell(made(("host.malloc", "jemalloc")))
    script = text.replace("export LD_PRELOAD", "export NOT_LOADED").replace("$LD_PRELOAD", "$WAS").replace(
        "{LD_PRELOAD", "{WAS"
    )  # fmt: skip
    assert sourced(script)["NOT_LOADED"] == "libjemalloc.so.2"
    assert sourced(script, WAS="mine.so")["NOT_LOADED"] == "libjemalloc.so.2:mine.so"


def test_a_name_that_no_shell_knows_is_left_out_and_said():
    for write in (formats.shell, formats.docker, formats.kubernetes):
        text = write(Parts(recipe="r", variables={"A;id": "1"}, unset=["B-C"]))
        assert "'A;id', 'B-C'" in text
        assert without_comments(text) in ([], ["{}"])


def test_keys_of_the_allocator_are_one_variable_whose_name_follows_the_version_of_torch():
    chosen = ("alloc.expandable_segments", True), ("alloc.garbage_collection_threshold", 0.8)
    both = "expandable_segments:True,garbage_collection_threshold:0.8"
    assert made(*chosen, torch="2.11.0").variables == {"PYTORCH_ALLOC_CONF": both}
    assert made(*chosen, torch="2.8.0").variables == {"PYTORCH_CUDA_ALLOC_CONF": both}


@pytest.mark.parametrize(
    ("knob", "value", "line"),
    [
        ("loader.num_workers", 4, "DataLoader(..., num_workers=4)"),
        ("matmul.fp32_precision", "high", "torch.set_float32_matmul_precision('high')"),
        ("cudnn.benchmark", True, "torch.backends.cudnn.benchmark = True"),
        ("optimizer.fused", True, "Adam(..., fused=True)  # or AdamW, SGD, Adagrad"),
        ("transfer.non_blocking", True, ".to(..., non_blocking=True)  # or cuda, copy_"),
        ("precision.autocast", "bf16", 'with torch.autocast("cuda", dtype=torch.bfloat16): ...'),
        ("compile.mode", "reduce-overhead", 'model.compile(mode="reduce-overhead")'),
        ("host.num_threads", 2, "torch.set_num_threads(2)"),
        (
            "loader.worker_threads",
            2,
            "DataLoader(..., worker_init_fn=lambda _: torch.set_num_threads(2))  # and of cv2",
        ),
        (
            "loader.sharing_strategy",
            "file_system",
            "torch.multiprocessing.set_sharing_strategy('file_system')",
        ),
        (
            "precision.quantize",
            "int8-weights",
            "quantize_(model, Int8WeightOnlyConfig())  # torchao.quantization",
        ),
        ("precision.quantize_keep", "head\nrm", "filter_fn: all nn.Linear besides those in 'head\\nrm'"),
    ],
)
def test_export_names_settings_that_are_no_variable_with_their_line_of_python(knob, value, line):
    shown = made((knob, value))
    assert list(shown.code.values()) == [line]
    for write in (formats.shell, formats.docker, formats.kubernetes):
        assert f"#     {line}  # {knob}=" in write(shown)


def test_export_leaves_a_setting_to_dynotune_only_when_no_line_of_python_does_it():
    assert made(("decode.backend", "opencv")).beside == {
        "decode.backend=opencv": "no line of code does it: dynotune run applies it."
    }
    assert made(("loader.worker_threads", 2)).beside == {}


def test_every_value_of_every_knob_can_be_written():
    from dynotune import knobs

    for knob in knobs.all_knobs():
        values = (
            knob.values or {"bool": (True, False), "int": (20,), "float": (0.5,), "str": ("1",)}[knob.type]
        )
        for value in values:
            if is_of_launch(knob.site):
                continue
            shown = made((knob.id, value), torch="2.11.0")
            assert shown.code or shown.variables or shown.preload or shown.beside, (knob.id, value)


def test_a_placeholder_of_the_command_is_filled_in():
    shown = made(("arg.batch", "32"), command=["python", "train.py", "--batch", "{batch}"])
    assert shown.command == ["python", "train.py", "--batch", "32"]


def test_the_line_that_needs_nothing_else_is_there_and_is_a_comment():
    text = formats.shell(made(("loader.num_workers", 4)))
    assert "#     dynotune run --recipe recipe.toml -- python train.py 'it'\"'\"'s $HOME'" in text
    assert "# Proved: 1.420× (1.38× to 1.47×) in throughput" in text
    assert "# No setting of this recipe is an environment variable." in text


# Docker


def dockers(line):
    """Name and value of `ENV NAME="…"` by the rules of Docker's reference for ENV and for the shell form of
    values."""
    name, quoted = re.fullmatch(r'ENV ([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"', line).groups()
    unescaped = re.sub(r'\\(["\\$])|\$', lambda match: match[1] or pytest.fail(f"expands: {line}"), quoted)
    return name, unescaped


@given(VARIABLES)
@example({"VA": NASTY, "VB": "a\\"})
def test_docker_sets_exactly_what_the_recipe_sets(variables):
    lines = without_comments(
        formats.docker(Parts(recipe="r\nENV X=1", command=["a\nENV X=1"], variables=variables))
    )
    assert dict(map(dockers, lines)) == variables


def test_docker_is_told_how_a_variable_is_taken_away_and_how_much_shared_memory_workers_need():
    text = formats.docker(made(("env.TORCH_LOGS", "@unset"), ("loader.num_workers", 4), shm_size="8Gi"))
    assert '# CMD ["env", "-u", "TORCH_LOGS", "python", "train.py", "it\'s $HOME"]' in text
    assert "# docker run --shm-size=8g …  (as given)" in text
    assert '"--recipe", "/recipe.toml", "--", "python", "train.py"' in text


def test_a_variable_that_only_the_user_sets_is_typed_on_the_line_that_runs_all_at_once():
    chosen = (("env.A", "1 2"), ("env.OMP_NUM_THREADS", "4"))
    assert '"--recipe", "/recipe.toml", "--set", "env.A=1 2", "--"' in formats.docker(made(*chosen))
    assert "--recipe recipe.toml --set 'env.A=1 2' -- python" in formats.shell(made(*chosen))
    assert "--set" not in formats.shell(made(("env.A", "1\nevil")))


STRANGE = {"TURNS": "a\u202eb", "ESCAPES": "\x1b[31m", "BYTES": "\udcff", "ENDS": "1\nRUN evil", "PLAIN": "1"}


@pytest.mark.parametrize(
    ("format_", "kept"),
    [
        ("shell", ["ENDS", "PLAIN"]),
        ("docker", ["PLAIN"]),
        ("kubernetes", ["TURNS", "ESCAPES", "ENDS", "PLAIN"]),
    ],
)
def test_a_value_that_the_file_cannot_show_is_left_out_and_named(format_, kept):
    parts = Parts(recipe="r\udcff", command=["a\udcff", "b"], unset=["GONE"], variables=STRANGE)
    text = getattr(formats, format_)(parts)
    text.encode()
    assert text.replace("\n", "").isprintable()
    left = ", ".join(name for name in STRANGE if name not in kept)
    assert (
        f"# Left out, because its value has characters that cannot be printed: {left}. dynotune run "
        "can set it.\n"
    ) in text
    assert all(name in text.replace(left, "") for name in kept)
    assert not any(line.startswith("RUN") for line in text.splitlines()) or format_ == "shell"
    assert format_ == "docker" or "COMMAND" in text or r"$'a\xff' b" in text


# Kubernetes


def yaml_of(text):
    return pytest.importorskip("yaml").safe_load(text)


def expanded(value):
    """As Kubernetes reads it: `$$` is a `$`, `$(NAME)` a variable."""
    assert not re.search(r"(?<!\$)(?:\$\$)*\$\(", value)
    return value.replace("$$", "$")


@settings(deadline=None)
@given(VARIABLES.filter(bool))
@example({"VA": NASTY, "VB": "yes", "VC": "\u0085 1e3"})
def test_kubernetes_sets_exactly_what_the_recipe_sets(variables):
    text = formats.kubernetes(
        Parts(recipe="r\nx: 1", command=["a\nx: 1"], variables=variables, unset=["GONE"])
    )
    (container,) = yaml_of(text)["spec"]["containers"]
    assert {entry["name"]: expanded(entry["value"]) for entry in container["env"]} == variables
    assert list(map(expanded, container["command"])) == ["env", "-u", "GONE", "a\nx: 1"]


@pytest.mark.parametrize(
    ("chosen", "facts", "given_", "size"),
    [
        ([("loader.num_workers", 4)], {}, None, "16Gi"),
        ([("loader.num_workers", 4)], {"shm_bytes": 3 << 30}, None, "3072Mi"),
        ([("loader.num_workers", 4)], {"shm_bytes": 900 << 30}, None, "16Gi"),
        ([("loader.num_workers", 4)], {"shm_bytes": 3 << 30}, "8Gi", "8Gi"),
        ([("loader.prefetch_factor", 4)], {}, None, "16Gi"),
    ],
)
def test_workers_of_a_pod_get_shared_memory(chosen, facts, given_, size):
    pod = yaml_of(formats.kubernetes(made(*chosen, shm_size=given_, **facts)))["spec"]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]


def test_without_workers_a_pod_needs_none():
    assert (
        "volumes" not in yaml_of(formats.kubernetes(made(("loader.num_workers", 0), ("env.A", "1"))))["spec"]
    )
    assert yaml_of(formats.kubernetes(made(("cudnn.benchmark", True)))) == {}


# sysctl


def finding(id_, *commands, **more):
    unknown = Unknown("not measured")
    claim = "It costs\nkernel.evil = 1"
    return Finding(id=id_, severity="low", claim=claim, share=unknown, commands=[*commands], **more)


def test_an_administrators_file_has_the_sysctls_of_findings_and_names_the_rest():
    found = [
        finding("zone-reclaim", "sudo sysctl vm.zone_reclaim_mode=0", sysctls={"vm.zone_reclaim_mode": "0"}),
        finding("power-limit", "sudo nvidia-smi -pl 700", needs_root=True),
        finding("sneaky", "sudo sysctl vm.x=0; rm -rf /", needs_root=True),
        finding("looked-at", "nvidia-smi -q"),
    ]
    unknown = [
        NotKnown("numa-balancing", "host.numa_balancing", "not in this container"),
        NotKnown("other", "x", "y"),
    ]
    text = formats.sysctl("recipe.toml", found, unknown)
    assert without_comments(text) == ["vm.zone_reclaim_mode = 0"]
    assert "# Not judged: numa-balancing: not in this container\n" in text and "other" not in text.replace(
        "others", ""
    )
    assert "#     sudo nvidia-smi -pl 700\n" in text and "looked-at" not in text


def test_export_invents_nothing_when_nothing_is_found():
    text = formats.sysctl("recipe.toml", [], [])
    assert without_comments(text) == []
    assert "# Nothing to set" in text
