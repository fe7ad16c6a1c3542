"""A recipe as a patch: git applies it and takes it back; a setting without a place is refused."""

from __future__ import annotations

import ast
import shutil
import subprocess
import textwrap

import pytest
import yaml

from dynotune import knobs
from dynotune.launch.process import revision
from dynotune.recipes.patch import patch_of
from dynotune.recipes.patch.configuration import Configuration, set_key
from dynotune.recipes.patch.diff import quoted, unified
from dynotune.recipes.patch.source import NoPlace, SourceFile
from dynotune.schema.errors import CannotRunHere

LOOP = """\
import argparse

import torch
from torch import nn, optim
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--workers", "-j", type=int, default=2, help="loader workers")
parser.add_argument("--batch", type=int, default=8)
args = parser.parse_args()


def main():
    model = nn.Linear(2, 2)
    optimizer = optim.AdamW(
        model.parameters(),
        lr=1e-3,  # the rate
    )
    loader = DataLoader(range(10), batch_size=args.batch, num_workers=args.workers)
    for x in loader:
        x = x.to("cpu")
        y = model(x)
        loss = y.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def patched(tmp_path):
    """Writes files, and returns the patch of some settings of `python train.py`."""

    def patch(files, *settings, command=("python", "train.py"), has_gpu=True):
        for name, content in ({"train.py": files} if isinstance(files, str | bytes) else files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
        return patch_of([knobs.parse(one) for one in settings], command, tmp_path, tmp_path, has_gpu=has_gpu)

    return patch


def after(patch, name="train.py"):
    return patch.edited[name].decode()


def reason(patch):
    assert not patch.diff and len(patch.refused) == 1
    return next(iter(patch.refused.values()))


def git(folder, *words, given=b""):
    done = subprocess.run(
        [
            "git",
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "core.autocrlf=false",
            "-C",
            folder,
            *words,
        ],
        input=given,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


# The bytes


UNUSUAL = {
    "plain": LOOP.encode(),
    "crlf": LOOP.replace("\n", "\r\n").encode(),
    "tabs": LOOP.replace("    ", "\t").encode(),
    "no-last-newline": LOOP.rstrip("\n").encode(),
    "latin-1": b"# -*- coding: latin-1 -*-\nNAME = '\xe4\xf6'\n" + LOOP.encode(),
    "byte-order-mark": b"\xef\xbb\xbf" + LOOP.encode(),
    "form-feed": LOOP.replace("\n\n\ndef", "\n\n\x0c\ndef").encode(),
    "mixed-ends": LOOP.replace("\n", "\r\n", 5).encode(),
}


HOSTILE = {
    "parentheses": "x = " + "(" * 5000 + "1" + ")" * 5000,
    "signs": "x = " + "-" * 100_000 + "1",
    "a sum": "x = " + "+".join(["1"] * 20_000),
    "a sum that Python parses": "x = " + "+".join(["1"] * 800),
    "nested lists": "x = " + "[" * 190 + "]" * 190,
    "200,000 lines": "a = f(1)\n" * 200_000,
    "an invalid escape": "x = '\\d'\n(",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_patch_is_refused_in_words_when_a_file_is_too_large_or_too_deep(patched, text, recwarn):
    with pytest.raises(CannotRunHere, match=r"cannot be parsed|larger than|too large"):
        patched(text, "loader.num_workers=4")
    imports = LOOP.replace("import argparse", "import argparse\nimport other")
    patch = patched({"train.py": imports, "other.py": text}, "loader.num_workers=4")
    assert "default=4" in after(patch)
    assert not recwarn.list


def test_setting_names_the_file_that_was_not_read_when_the_program_is_too_large(patched, monkeypatch):
    from dynotune.recipes.patch import source

    monkeypatch.setattr(source, "MOST_NODES", 300)
    parts = {f"part{number}.py": "x = f(1)\n" * 20 for number in range(3)}
    lines = "".join(f"import part{number}\n" for number in range(3))
    patch = patched({"train.py": lines, **parts}, "loader.num_workers=4")
    assert "part2.py is too large" in reason(patch) and "part1.py" not in reason(patch)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize("raw", UNUSUAL.values(), ids=UNUSUAL)
def test_patch_is_applied_and_taken_back_by_git_when_bytes_are_unusual(patched, tmp_path, raw):
    patch = patched(
        raw,
        "loader.num_workers=4",
        "loader.persistent_workers=true",
        "optimizer.fused=true",
        "cudnn.benchmark=true",
        "precision.autocast=bf16",
        "env.TORCHINDUCTOR_COMPILE_THREADS=4",
    )
    assert not patch.refused
    heading = b"A heading that git skips.\n\n"
    git(tmp_path, "init", "-q")
    git(tmp_path, "apply", "-", given=heading + patch.diff)
    path = tmp_path / "train.py"
    assert path.read_bytes() == patch.edited["train.py"] != raw
    ast.parse(path.read_bytes())
    git(tmp_path, "apply", "-R", "-", given=heading + patch.diff)
    assert path.read_bytes() == raw


def test_unified_diff_says_where_no_newline_ends_a_file():
    diff = unified(b"a.py", b"a\r\nb", b"a\r\nc")
    assert diff.startswith(b"diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@")
    assert diff.endswith(b" a\r\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n")
    assert unified(b"a.py", b"a", b"a") == b""


def test_quoted_path_is_as_git_writes_it_when_characters_are_not_plain():
    assert quoted("a/ü\t.py".encode()) == rb'"a/\303\274\t.py"' and quoted(b"a/b c.py") == b"a/b c.py"


def test_patch_keeps_all_lines_that_no_setting_touches(patched):
    patch = patched(LOOP, "optimizer.fused=true")
    assert after(patch).replace("        fused=True,\n", "") == LOOP


# Places


def test_default_of_the_programs_option_is_set_when_a_call_takes_it(patched):
    patch = patched(LOOP, "loader.num_workers=4")
    assert 'type=int, default=4, help="loader workers")' in after(patch)
    assert "num_workers=args.workers)" in after(patch)
    assert patch.places["loader.num_workers=4"][0].startswith("train.py:8: parser.add_argument(")


@pytest.mark.parametrize("word", ["--workers=2", "-j2", "-j", "--workers"])
def test_patch_is_refused_when_the_command_gives_the_option(patched, word):
    patch = patched(LOOP, "loader.num_workers=4", command=["python", "train.py", word, "2"])
    assert reason(patch) in (
        "the command gives `--workers`: write 4 there",
        "the command gives `-j`: write 4 there",
    )


@pytest.mark.parametrize(
    "use",
    [
        "print(args.cuda)",
        "print(vars(args)['cuda'])",
        "print(getattr(args, 'cuda'))",
        "run(**vars(args))",
        "run(pin_memory=args.cuda)",
    ],
)
def test_call_is_edited_when_the_program_uses_the_option_otherwise(patched, use):
    text = LOOP.replace("num_workers=args.workers", "pin_memory=args.cuda").replace("--batch", "--cuda")
    text = text.replace("batch_size=args.batch, ", "") + use + "\n"
    edited = after(patched(text, "loader.pin_memory=true"))
    assert "pin_memory=True)" in edited and '"--cuda", type=int, default=8)' in edited


def test_call_is_edited_when_a_click_function_uses_the_option_otherwise(patched):
    text = """
        import click
        from torch.utils.data import DataLoader

        @click.command()
        @click.option("--workers", default=0)
        def main(workers):
            config = read(workers)
            DataLoader([], num_workers=config.workers)
        """
    assert "default=0" in after(patched(text, "loader.num_workers=3"))


@pytest.mark.parametrize("words", [["--work", "0"], ["--work=0"], ["--w=0"]])
def test_patch_is_refused_when_the_command_abbreviates_the_option(patched, words):
    patch = patched(LOOP, "loader.num_workers=4", command=["python", "train.py", *words])
    assert reason(patch) == f"the command gives `{words[0]}`: write 4 there".replace("=0", "")


def test_option_is_not_given_when_the_words_are_another_options(patched):
    text = LOOP.replace('"--batch"', '"--work"').replace("args.batch", "8")
    patch = patched(text, "loader.num_workers=4", command=["python", "train.py", "--work", "8"])
    assert "default=4" in after(patch)


def test_call_is_edited_when_the_program_changes_the_option_itself(patched):
    patch = patched(LOOP + "args.workers = args.workers // 2\n", "loader.num_workers=4")
    assert "num_workers=4)" in after(patch) and "default=2" in after(patch)


def test_switch_of_the_program_is_named_when_it_has_one(patched):
    text = LOOP.replace("num_workers=args.workers", "pin_memory=args.pin").replace(
        'parser.add_argument("--batch"',
        'parser.add_argument("--pin", action="store_true")\nparser.add_argument("--batch"',
    )
    assert "give or leave out `--pin`" in reason(patched(text, "loader.pin_memory=true"))


def test_default_of_an_option_is_added_once_when_two_loaders_take_it(patched):
    text = LOOP.replace(", default=2", "").replace(
        "    for x in loader", "    more = LOADER\n    for x in loader"
    )
    text = text.replace("LOADER", "DataLoader([], num_workers=args.workers)")
    edited = after(patched(text, "loader.num_workers=4"))
    assert edited == text.replace('help="loader workers")', 'help="loader workers", default=4)')


def test_argument_is_replaced_when_another_setting_has_appended_it(patched):
    text = "import torch\ntorch.compile(f)\n"
    patch = patched(text, "compile.mode=reduce-overhead", "compile.mode=max-autotune-no-cudagraphs")
    assert after(patch).count("mode=") == 1


def test_setting_is_refused_when_the_edited_file_would_not_compile(patched, tmp_path):
    (tmp_path / "a.py").write_text("f(a=1)\n")
    file = SourceFile(tmp_path / "a.py", "a.py")
    call = next(file.calls())
    file.edits.replaced[call] = call.with_changes(args=[*call.args, *call.args])
    with pytest.raises(NoPlace, match=r"the edits would make a.py invalid"):
        file.edited()


def test_click_option_is_edited_when_its_function_passes_the_value(patched):
    text = """
        import click
        from torch.utils.data import DataLoader

        @click.command()
        @click.option("--workers", default=0)
        def main(workers):
            config = read()
            DataLoader([], num_workers=config.workers)
        """
    assert '@click.option("--workers", default=3)' in after(patched(text, "loader.num_workers=3"))


def test_argument_by_position_is_replaced_when_the_call_has_no_names(patched):
    text = "from torch.utils import data\ndata.DataLoader(d, 8, True, None, None, 0)\n"
    patch = patched(text, "loader.num_workers=4", "loader.pin_memory=true")
    assert after(patch).endswith("data.DataLoader(d, 8, True, None, None, 4, pin_memory=True)\n")


def test_appended_arguments_stand_as_the_others_when_those_have_lines_of_their_own(patched):
    text = "import torch\ntorch.utils.data.DataLoader(\n    d,  # the data\n    batch_size=8  # large\n)\n"
    patch = patched(text, "loader.num_workers=4", "loader.prefetch_factor=3")
    assert after(patch) == text.replace(
        "batch_size=8  # large\n", "batch_size=8,  # large\n    num_workers=4,\n    prefetch_factor=3\n"
    )


def test_call_in_an_imported_module_is_edited_when_it_belongs_to_the_program(patched):
    files = {
        "train.py": "from parts import loading\nloading.make()\n",
        "parts/__init__.py": "",
        "parts/loading.py": "from torch.utils.data import DataLoader as L\ndef make():\n    return L([])\n",
        "other.py": "from torch.utils.data import DataLoader\nDataLoader([])\n",
    }
    patch = patched(files, "loader.num_workers=2")
    assert list(patch.edited) == ["parts/loading.py"]
    assert "L([], num_workers=2)" in after(patch, "parts/loading.py")


def test_module_is_patched_when_the_command_names_it(patched):
    files = {"pkg/__init__.py": "", "pkg/train.py": "import torch\ntorch.utils.data.DataLoader([])\n"}
    command = ["torchrun", "--nproc-per-node", "2", "-m", "pkg.train"]
    assert list(patched(files, "loader.num_workers=2", command=command).edited) == ["pkg/train.py"]


def test_attribute_is_set_where_the_program_sets_it_when_that_always_happens(patched):
    text = "import torch\nfrom torch.backends import cudnn\n\ncudnn.benchmark = False\n"
    patch = patched(text, "cudnn.benchmark=true")
    assert after(patch) == text.replace("False", "True")


def test_attribute_is_also_set_at_the_start_when_the_programs_line_is_conditional(patched):
    text = "import os\nimport torch\nif os.sep:\n    torch.backends.cudnn.benchmark = False\n"
    assert after(patched(text, "cudnn.benchmark=true")) == (
        "import os\nimport torch\ntorch.backends.cudnn.benchmark = True\n"
        "if os.sep:\n    torch.backends.cudnn.benchmark = True\n"
    )


def test_attribute_is_set_at_the_start_when_the_programs_line_is_in_a_function(patched):
    text = "import torch\ndef unused():\n    torch.backends.cudnn.benchmark = True\n"
    patch = patched(text, "cudnn.benchmark=true")
    assert after(patch).startswith("import torch\ntorch.backends.cudnn.benchmark = True\ndef")


@pytest.mark.parametrize(
    "line", ["torch.set_float32_matmul_precision('high')", "torch.backends.cuda.matmul.allow_tf32 = True"]
)
def test_precision_is_set_at_the_start_when_the_programs_line_is_in_a_function(patched, line):
    patch = patched(f"import torch\ndef unused():\n    {line}\n", "matmul.fp32_precision=high")
    assert after(patch).startswith("import torch\ntorch.set_float32_matmul_precision('high')\ndef")


def test_own_compile_is_no_place_when_nothing_calls_its_function(patched):
    text = "import torch\ndef unused():\n    return torch.compile(f)\n"
    assert reason(patched(text, "compile.mode=default")).startswith("train.py:3: nothing calls `unused`")
    called = patched(text + "unused()\n", "compile.mode=default")
    assert not called.refused and not called.diff


def test_setter_stands_after_the_imports_when_the_program_has_none(patched):
    patch = patched("import os\nfrom torch import nn\n\nnn.Linear(1, 1)\n", "matmul.fp32_precision=high")
    assert after(patch).startswith(
        "import os\nfrom torch import nn\nimport torch\ntorch.set_float32_matmul_precision('high')\n"
    )


def test_setter_stands_below_the_import_of_torch_when_a_function_comes_first(patched):
    text = "import os\ndef f():\n    pass\nimport torch\nf()\n"
    assert after(patched(text, "cudnn.benchmark=true")) == (
        "import os\ndef f():\n    pass\nimport torch\ntorch.backends.cudnn.benchmark = True\nf()\n"
    )


@pytest.mark.parametrize("text", ["f()\n", "def f():\n    pass\n", "if 1:\n    import torch\n"])
def test_all_that_a_patch_puts_first_is_imported_when_a_file_has_no_imports(patched, text):
    patch = patched(
        text,
        "cudnn.benchmark=true",
        "env.TORCHINDUCTOR_COMPILE_THREADS=4",
        "matmul.fp32_precision=high",
        "env.CUBLAS_WORKSPACE_CONFIG=:4096:8",
    )
    assert (
        after(patch)
        == (
            "import os\n"
            "os.environ['TORCHINDUCTOR_COMPILE_THREADS'] = '4'\n"
            "os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'\n"
            "import torch\n"
            "torch.backends.cudnn.benchmark = True\n"
            "torch.set_float32_matmul_precision('high')\n"
        )
        + text
    )


def test_torch_is_imported_above_the_model_when_the_program_imports_it_below(patched):
    text = "from nets import model\ndef f():\n    pass\ny = model(1)\nmodel.eval()\nimport torch\n"
    edited = after(patched(text, "grad.mode=no_grad", "layout.channels_last=true"))
    assert (
        edited.startswith("from nets import model\nimport torch\ndef f") and edited.count("import torch") == 2
    )


def test_model_is_compiled_before_its_optimizer_when_the_program_compiles_nothing(patched):
    patch = patched(LOOP, "compile.mode=reduce-overhead", "layout.channels_last=true")
    lines = [line.strip() for line in after(patch).splitlines()]
    begin = lines.index("model.compile(mode='reduce-overhead')")
    assert lines[begin + 1 : begin + 3] == [
        "model.to(memory_format=torch.channels_last)",
        "optimizer = optim.AdamW(",
    ]


def test_own_compile_gets_the_mode_when_the_program_calls_it(patched):
    text = "import torch\nmodel = torch.compile(f, mode='default')\n"
    assert "mode='reduce-overhead')" in after(patched(text, "compile.mode=reduce-overhead"))


def test_autocast_holds_model_and_loss_when_a_backward_pass_follows(patched):
    text = after(patched(LOOP, "precision.autocast=bf16"))
    assert (
        "        with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "            y = model(x)\n"
        "            loss = y.sum()\n"
        "        optimizer.zero_grad()\n"
    ) in text


def test_autocast_holds_the_call_in_another_file_when_a_function_gets_the_model(patched):
    call = "def epoch(model, d):\n    for x in d:\n        y = model(x)\n"
    files = {
        "train.py": "import torch, epochs, other\nopt = torch.optim.SGD(model.parameters())\n",
        "epochs.py": call,
        "other.py": "model = f()\nmodel(1)\n",
    }
    patch = patched(files, "precision.autocast=bf16", has_gpu=False)
    assert list(patch.edited) == ["epochs.py"]
    assert after(patch, "epochs.py").startswith("import torch\ndef epoch") and "'cpu'" in after(
        patch, "epochs.py"
    )


def test_precision_is_there_already_when_the_program_allows_tf32(patched):
    text = "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True\n"
    patch = patched(text, "matmul.fp32_precision=high")
    assert not patch.diff and patch.places["matmul.fp32_precision=high"][0].endswith("= True already")


def test_inference_mode_holds_the_call_when_the_model_is_put_into_evaluation(patched):
    text = "import torch\nmodel = load()\nmodel.eval()\nfor x in d:\n    y = model(x)\n    show(y)\n"
    assert "    with torch.inference_mode():\n        y = model(x)\n    show(y)\n" in after(
        patched(text, "grad.mode=inference_mode")
    )


def test_copies_of_batches_do_not_wait_when_a_loop_draws_them(patched):
    patch = patched(LOOP.replace('.to("cpu")', ".cuda()"), "transfer.non_blocking=true")
    assert "x = x.cuda(non_blocking=True)" in after(patch)


def test_variable_is_set_before_all_imports_when_it_is_read_late(patched):
    text = '"""Train."""\nfrom __future__ import annotations\nimport torch\n'
    assert after(patched(text, "env.CUBLAS_WORKSPACE_CONFIG=:4096:8")) == (
        '"""Train."""\nfrom __future__ import annotations\nimport os\n'
        "os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'\nimport torch\n"
    )


# Trainers and Hydra


def test_trainer_of_transformers_gets_its_own_arguments(patched):
    text = "from transformers import TrainingArguments\nTrainingArguments('out')\n"
    patch = patched(text, "loader.num_workers=4", "optimizer.fused=true", "precision.autocast=bf16")
    assert "('out', dataloader_num_workers=4, optim='adamw_torch_fused', bf16=True)" in after(patch)


def test_trainer_of_transformers_is_given_an_option_when_it_parses_the_command_line(patched):
    text = "from transformers import HfArgumentParser\nHfArgumentParser(T).parse_args_into_dataclasses()\n"
    assert "give `--dataloader_num_workers` there" in reason(patched(text, "loader.num_workers=4"))


def test_trainer_of_lightning_gets_precision_and_benchmark(patched):
    text = "import lightning as L\nL.Trainer(max_epochs=1).fit(model)\n"
    patch = patched(text, "precision.autocast=bf16", "cudnn.benchmark=true")
    assert "L.Trainer(max_epochs=1, precision='bf16-mixed', benchmark=True)" in after(patch)


HYDRA = {
    "train.py": """
        import hydra
        from torch.utils.data import DataLoader

        @hydra.main(config_path="conf", config_name="config", version_base=None)
        def main(cfg):
            DataLoader([], num_workers=cfg.data.workers)

        main()
        """,
    "conf/config.yaml": "defaults:\n  - data: small  # which\n  - _self_\nseed: 1\n",
    "conf/data/small.yaml": b"path: x   # kept\r\nworkers: 2   # of the loader\r\n",
}


def test_hydras_file_is_edited_when_a_call_reads_the_configuration(patched):
    patch = patched(HYDRA, "loader.num_workers=4")
    assert patch.edited == {"conf/data/small.yaml": b"path: x   # kept\r\nworkers: 4   # of the loader\r\n"}
    assert patch.places["loader.num_workers=4"] == ["conf/data/small.yaml:2: data.workers: 4"]


def test_patch_is_refused_when_the_command_overrides_the_configuration(patched):
    patch = patched(HYDRA, "loader.num_workers=4", command=["python", "train.py", "data.workers=8"])
    assert reason(patch) == "the command gives `data.workers=8`: write 4 there"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["data=large"], "conf/data/large.yaml"),
        (["+data=large"], "conf/data/large.yaml"),
        (["--config-name", "other"], "conf/data/large.yaml"),
        (["--config-name=other.yaml"], "conf/data/large.yaml"),
        (["-cn", "other", "data=small"], "conf/data/small.yaml"),
        (["--config-path", "more"], "more/config.yaml"),
        (["seed=3"], "conf/data/small.yaml"),
    ],
)
def test_hydras_files_are_those_that_the_command_chooses(patched, words, name):
    files = HYDRA | {
        "conf/data/large.yaml": "workers: 2\n",
        "conf/other.yaml": "defaults:\n  - data: large\n",
        "more/config.yaml": "data:\n  workers: 2\n",
    }
    assert list(patched(files, "loader.num_workers=4", command=["python", "train.py", *words]).edited) == [
        name
    ]


@pytest.mark.parametrize(
    "word",
    ["data=small,large", "data=gone", "~data", "data@more=small", "--config-dir=x", "-cd", "--config-name="],
)
def test_hydras_files_are_kept_when_the_command_chooses_others(patched, word):
    assert "the command gives" in reason(
        patched(HYDRA, "loader.num_workers=4", command=["python", "train.py", word])
    )


@pytest.mark.parametrize(
    "word", ["data.loader.num_workers=1", "++data.loader.num_workers=1", "data.loader={}", "~data.loader"]
)
def test_hydras_mapping_is_kept_when_the_command_overrides_it(patched, word):
    files = HYDRA | {"conf/config.yaml": "data:\n  loader:\n    _target_: torch.utils.data.DataLoader\n"}
    patch = patched(files, "loader.num_workers=4", command=["python", "train.py", word])
    assert reason(patch) == f"the command gives `{word}`: write 4 there"


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("base", "conf/data/base.yaml"),
        ("loader: fast", "conf/data/loader/fast.yaml"),
        ("/data/loader: fast", "conf/data/loader/fast.yaml"),
        ("_self_", ""),
    ],
)
def test_hydras_files_are_those_that_a_chosen_file_names(patched, entry, name):
    files = HYDRA | {
        "train.py": HYDRA["train.py"].replace("cfg.data.workers", "cfg.data.loader.workers"),
        "conf/data/small.yaml": f"defaults:\n  - {entry}\n",
        "conf/data/base.yaml": "loader:\n  workers: 2\n" if entry == "base" else "",
        "conf/data/loader/fast.yaml": "workers: 2\n",
    }
    assert list(patched(files, "loader.num_workers=4").edited) == [name or "train.py"]


def test_hydras_file_is_edited_when_the_chosen_file_of_its_group_names_it(patched):
    files = HYDRA | {"conf/data/large.yaml": "defaults:\n  - small\nseed: 1\n"}
    patch = patched(files, "loader.num_workers=4", command=["python", "train.py", "data=large"])
    assert list(patch.edited) == ["conf/data/small.yaml"]


def test_hydras_mapping_is_kept_when_another_file_sets_the_argument(patched):
    files = HYDRA | {
        "conf/config.yaml": "defaults:\n  - data: small\ndata:\n  num_workers: 0\n",
        "conf/data/small.yaml": "_target_: torch.utils.data.DataLoader\n",
    }
    patch = patched(files, "loader.num_workers=4")
    assert reason(patch) == "conf/config.yaml:4: this file sets data.num_workers, too"


@pytest.mark.parametrize(
    ("use", "yaml"),
    [("print(cfg.data.workers)", ""), ("print(cfg['data']['workers'])", ""), ("", "other: ${.workers}\n")],
)
def test_call_is_edited_when_the_configuration_uses_the_value_otherwise(patched, use, yaml):
    files = HYDRA | {
        "train.py": HYDRA["train.py"].replace("DataLoader([]", f"{use}\n            DataLoader([]"),
        "conf/data/small.yaml": f"workers: 2\n{yaml}",
    }
    assert list(patched(files, "loader.num_workers=4").edited) == ["train.py"]


def test_hydras_files_are_kept_when_a_chosen_file_chooses_others(patched):
    files = HYDRA | {"conf/exp/a.yaml": "# @package _global_\ndefaults:\n  - override /data: large\n"}
    patch = patched(files, "loader.num_workers=4", command=["python", "train.py", "+exp=a"])
    assert reason(patch) == "conf/exp/a.yaml chooses other files of the configuration by `override /data`"


def test_hydras_mapping_gets_the_argument_when_hydra_makes_the_loader(patched):
    files = {
        "train.py": HYDRA["train.py"].replace(
            "DataLoader([], num_workers=cfg.data.workers)", "make(cfg.data)"
        ),
        "conf/config.yaml": "data:\n  loader:\n    _target_: torch.utils.data.DataLoader\n    batch_size: 4",
    }
    patch = patched(files, "loader.num_workers=4", "loader.pin_memory=true")
    assert after(patch, "conf/config.yaml").splitlines()[2:5] in (
        ["    _target_: torch.utils.data.DataLoader", "    num_workers: 4", "    pin_memory: true"],
        ["    _target_: torch.utils.data.DataLoader", "    pin_memory: true", "    num_workers: 4"],
    )


def test_hydras_value_is_edited_once_when_two_loaders_read_it(patched):
    call = "DataLoader([], num_workers=cfg.data.workers)"
    files = HYDRA | {
        "train.py": HYDRA["train.py"].replace(call, f"{call}, {call}"),
        "conf/data/small.yaml": "workers: 0\n",
    }
    assert after(patched(files, "loader.num_workers=16"), "conf/data/small.yaml") == "workers: 16\n"


def test_hydras_value_is_refused_when_two_settings_want_different_ones(tmp_path):
    tree = yaml.compose("workers: 2\n", yaml.SafeLoader)
    file = Configuration(tmp_path / "a.yaml", "a.yaml", b"workers: 2\n", [], tree)
    set_key(file, tree, "workers", "16")
    with pytest.raises(NoPlace, match=r"a.yaml:1: another setting has another value for it"):
        set_key(file, tree, "workers", "4")
    assert file.edited() == b"workers: 16\n"


def test_calls_are_edited_when_two_arguments_read_one_value_of_the_configuration(patched):
    call = "DataLoader([], num_workers=cfg.data.workers, prefetch_factor=cfg.data.workers)"
    files = HYDRA | {
        "train.py": HYDRA["train.py"].replace("DataLoader([], num_workers=cfg.data.workers)", call)
    }
    patch = patched(files, "loader.num_workers=16", "loader.prefetch_factor=4")
    assert "DataLoader([], num_workers=16, prefetch_factor=4)" in after(patch)


@pytest.mark.parametrize(
    "text",
    [
        "workers:\npath: x\n",
        "workers: &n 2\nothers: *n\n",
        "{workers:2}\n",
    ],
    ids=["empty", "anchor", "no-space"],
)
def test_hydras_file_is_kept_when_an_edit_would_change_more_than_the_value(patched, text):
    patch = patched(HYDRA | {"conf/data/small.yaml": text}, "loader.num_workers=4")
    assert "conf/data/small.yaml" not in patch.edited


def test_hydras_file_is_kept_when_another_key_is_the_same_node(patched):
    main = "data: &d\n  workers: 2\nother: *d\n"
    patch = patched(HYDRA | {"conf/config.yaml": main}, "loader.num_workers=4")
    assert reason(patch) == "conf/config.yaml:2: another key has the same value by an alias"


def test_patch_is_written_soon_when_aliases_multiply(patched):
    bomb = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 22))
    files = HYDRA | {"conf/data/small.yaml": f"workers: 2\na0: &a0 [{{b: 1}}]\n{bomb}"}
    assert after(patched(files, "loader.num_workers=4"), "conf/data/small.yaml").startswith("workers: 4\n")


def test_patch_is_written_when_a_value_of_the_configuration_holds_itself(patched):
    files = HYDRA | {"conf/data/small.yaml": "workers: 2\na: &a [1, *a]\n"}
    assert after(patched(files, "loader.num_workers=4"), "conf/data/small.yaml").startswith("workers: 4\n")


def test_classes_that_hydra_makes_are_edited_as_imported_ones(patched):
    files = {
        "train.py": HYDRA["train.py"].replace("DataLoader([], num_workers=cfg.data.workers)", "make(cfg)"),
        "conf/config.yaml": "trainer:\n  _target_: lightning.pytorch.trainer.Trainer\n"
        "data:\n  _target_: parts.data.Data\n",
        "parts/data.py": "from torch.utils.data import DataLoader\nclass Data:\n    def f(self):\n"
        "        return DataLoader([])\n",
    }
    patch = patched(files, "loader.num_workers=4", "precision.autocast=bf16")
    assert "DataLoader([], num_workers=4)" in after(patch, "parts/data.py")
    assert after(patch, "conf/config.yaml").count("  precision: 'bf16-mixed'\n") == 1


HF = "from transformers import TrainingArguments\nTrainingArguments('out', GIVEN)\n"


@pytest.mark.parametrize(
    ("setting", "given", "why"),
    [
        ("optimizer.fused=true", "optim='sgd'", "optim='sgd' is another optimizer"),
        ("optimizer.fused=true", "optim=choose()", "optim=choose() is another optimizer"),
        ("optimizer.fused=true", "adafactor=True", "transformers refuses optim beside adafactor=True"),
        ("loader.prefetch_factor=4", "seed=1", "without dataloader_num_workers"),
        ("loader.prefetch_factor=4", "dataloader_num_workers=0", "without dataloader_num_workers"),
        ("precision.autocast=bf16", "fp16=True", "transformers refuses bf16 beside fp16=True"),
        ("precision.autocast=bf16", "fp16=args.half", "transformers refuses bf16 beside fp16=args.half"),
    ],
)
def test_trainer_of_transformers_is_kept_when_its_other_arguments_disagree(patched, setting, given, why):
    assert why in reason(patched(HF.replace("GIVEN", given), setting))


@pytest.mark.parametrize("given", ["optim='adamw_torch'", "fp16=False, adafactor=None"])
def test_trainer_of_transformers_is_edited_when_its_other_arguments_agree(patched, given):
    patch = patched(HF.replace("GIVEN", given), "optimizer.fused=true", "precision.autocast=bf16")
    assert "optim='adamw_torch_fused'" in after(patch) and "bf16=True" in after(patch)


def test_trainer_of_transformers_prefetches_when_it_has_workers(patched):
    given = "dataloader_num_workers=2"
    assert "prefetch_factor=4" in after(patched(HF.replace("GIVEN", given), "loader.prefetch_factor=4"))
    both = patched(HF.replace("GIVEN", "seed=1"), "loader.prefetch_factor=4", "loader.num_workers=2")
    assert not both.refused


@pytest.mark.parametrize(("line", "is_kept"), [("optim: sgd", True), ("optim: adamw_torch", False)])
def test_arguments_that_hydra_makes_are_kept_when_another_optimizer_is_chosen(patched, line, is_kept):
    text = f"args:\n  _target_: transformers.TrainingArguments\n  {line}\n"
    patch = patched(HYDRA | {"conf/config.yaml": text}, "optimizer.fused=true")
    assert bool(patch.refused) is is_kept


def test_loaders_that_a_trainer_does_not_make_are_named_when_its_arguments_are_set(patched):
    text = HF.replace(", GIVEN", "") + "from torch.utils.data import DataLoader\nDataLoader([])\n"
    patch = patched(text, "loader.num_workers=4")
    assert "DataLoader([])\n" in after(patch)
    assert patch.places["loader.num_workers=4"][1:] == [
        "train.py:4: DataLoader([]) is left as it is: the trainer does not make it"
    ]


# Refusals

REFUSED = {
    "env.OMP_NUM_THREADS=2": ("import torch\n", "OMP_NUM_THREADS is read when the process starts"),
    "env.NCCL_ALGO=Ring": ("import os\nos.environ['NCCL_ALGO'] = 'Tree'\n", "train.py:2: the program names"),
    "env.TRITON_CACHE_DIR=@unset": ("import torch\n", "a variable must be missing before the process starts"),
    "alloc.expandable_segments=true": ("import torch\n", "it is read when the process starts"),
    "host.malloc=jemalloc": ("import torch\n", "it is read when the process starts"),
    "arg.batch=8": ("import torch\n", "it belongs to the command line"),
    "loader.pin_memory=true": ("import torch\n", "no line of the program's files calls DataLoader"),
    "loader.num_workers=4": (
        "from torch.utils.data import DataLoader\nDataLoader([])\nDataLoader([], **options)\n",
        "train.py:3: DataLoader(…) gets arguments by `**options`, which may hold num_workers",
    ),
    "loader.num_workers=5": (
        "from torch.utils.data import DataLoader\nclass Mine(DataLoader):\n    pass\n",
        "train.py:2: Mine derives from DataLoader",
    ),
    "loader.num_workers=6": (
        "import functools\nfrom torch.utils.data import DataLoader\nf = functools.partial(DataLoader, [])\n",
        "train.py:3: DataLoader is called through functools.partial",
    ),
    "loader.num_workers=7": (
        "import torch.utils.data as t\nclass D(t.IterableDataset):\n    pass\nt.DataLoader(D())\n",
        "train.py:2: an IterableDataset that does not ask get_worker_info()",
    ),
    "loader.num_workers=0": (
        "from torch.utils.data import DataLoader\nDataLoader([], num_workers=2, persistent_workers=True)\n",
        "without workers torch refuses persistent_workers=True",
    ),
    "loader.persistent_workers=true": (
        "from torch.utils.data import DataLoader\nDataLoader([])\n",
        "its num_workers is 0",
    ),
    "optimizer.fused=true": (
        "import torch\ntorch.optim.SGD(p, foreach=True)\n",
        "torch refuses fused beside foreach=True",
    ),
    "compile.mode=default": ("import torch\n", "no optimizer of torch and no `.eval()` names the model"),
    "layout.channels_last=true": (
        "import torch\na = torch.optim.SGD(f.parameters())\nb = torch.optim.SGD(g.parameters())\n",
        "several statements name a model: train.py:2 (f), train.py:3 (g)",
    ),
    "layout.channels_last=false": (
        "import torch\nopt = torch.optim.SGD(chain(gen.parameters(), head.parameters()))\n",
        "train.py:2: the optimizer steps several modules: gen, head",
    ),
    "compile.mode=max-autotune-no-cudagraphs": (
        "import torch\nopt = torch.optim.SGD([p for m in models for p in m.parameters()])\n",
        "train.py:2: the optimizer does not name the model",
    ),
    "loader.persistent_workers=false": (
        "from torch.utils.data import DataLoader\nDataLoader = wrapped(DataLoader)\nDataLoader([])\n",
        "train.py:3: DataLoader may be another one than torch.utils.data.DataLoader",
    ),
    "loader.pin_memory=false": (
        "from torch.utils.data import DataLoader\nclass DataLoader:\n    pass\nDataLoader([])\n",
        "train.py:4: DataLoader may be another one than torch.utils.data.DataLoader",
    ),
    "compile.mode=reduce-overhead": (
        "import os, torch\nif os.sep:\n    f = torch.compile(f)\n",
        "train.py:3: the program compiles only under a condition",
    ),
    "grad.mode=no_grad": (
        "import torch\nmodel.eval()\nloss.backward()\n",
        "no optimizer of torch and no `.eval()` names the model",
    ),
    "precision.autocast=bf16": (
        "import torch\nwith torch.autocast('cuda'):\n    f()\n",
        "train.py:2: the program has an autocast of its own",
    ),
    "matmul.fp32_precision=high": (
        "import torch\ntorch.backends.cuda.matmul.allow_tf32 = False\n",
        "train.py:2: `torch.backends.cuda.matmul.allow_tf32 = False` has the last word",
    ),
    "precision.quantize=int8": ("import torch\n", "use dynotune run"),
}


@pytest.mark.parametrize("setting", REFUSED)
def test_setting_is_refused_with_its_reason_when_it_has_no_place(patched, setting):
    text, why = REFUSED[setting]
    assert why in reason(patched(text, setting))


def test_settings_that_have_a_place_are_in_the_patch_when_another_is_refused(patched):
    text = (
        "from torch.utils.data import DataLoader\nDataLoader([])\nDataLoader([], pin_memory=0, **options)\n"
    )
    patch = patched(text, "loader.num_workers=4", "loader.pin_memory=true")
    assert set(patch.refused) == {"loader.num_workers=4"} and "num_workers" not in after(patch)
    assert after(patch).count("pin_memory=True") == 2


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"def f(:\n", "cannot be parsed"),
        (b"# coding: nonsense\n", "cannot be parsed"),
        (b"\xff = 1\n", "parsed"),
    ],
)
def test_patch_is_refused_when_the_entry_is_no_python(patched, raw, why):
    with pytest.raises(CannotRunHere, match=why):
        patched(raw, "cudnn.benchmark=true")


def test_patch_is_refused_when_the_entry_is_too_large(patched, monkeypatch):
    monkeypatch.setattr("dynotune.recipes.patch.source.LARGEST_BYTES", 10)
    with pytest.raises(CannotRunHere, match=r"train.py cannot be read: it is larger than 10 bytes"):
        patched(LOOP, "cudnn.benchmark=true")


@pytest.mark.parametrize("command", [["./run.sh"], [], ["python", "-c", "1"], ["python", "gone.py"]])
def test_patch_is_refused_when_the_command_names_no_file_of_the_user(patched, command):
    with pytest.raises(CannotRunHere, match="names no Python file"):
        patched(LOOP, "cudnn.benchmark=true", command=command)


def test_patch_names_the_install_line_when_libcst_is_missing(patched, monkeypatch):
    monkeypatch.setattr("dynotune.recipes.patch.patch.find_spec", lambda name: None)
    with pytest.raises(CannotRunHere) as error:
        patched(LOOP, "cudnn.benchmark=true")
    assert "pip install 'dynotune[patch]'" in error.value.hint


# The commit that is measured


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_commit_with_holds_the_working_tree_and_the_patch_and_changes_neither(patched, tmp_path):
    patch = patched(LOOP, "optimizer.fused=true")
    (tmp_path / "other.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "all")
    (tmp_path / "other.py").write_text("2\n")
    before = git(tmp_path, "status", "--porcelain"), git(tmp_path, "log", "--all", "--format=%h")
    commit = revision.commit_with(tmp_path, patch.edited, "measured")
    assert git(tmp_path, "show", f"{commit}:train.py") == after(patch)
    assert git(tmp_path, "show", f"{commit}:other.py") == "2\n"
    assert before == (git(tmp_path, "status", "--porcelain"), git(tmp_path, "log", "--all", "--format=%h"))
    assert (tmp_path / "train.py").read_text() == LOOP
    assert revision.find(tmp_path, commit).differing == ["train.py"]
