from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dynotune
from dynotune import cli

from ..probe.fatbins import MACHINE, PTX, container, entry, library

NATIVE, OLD = container(entry(MACHINE, 90)), container(entry(MACHINE, 80))
PTX_ONLY = container(entry(PTX, 75, unpacked=3 << 20))


@pytest.fixture(autouse=True)
def libraries(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)
    for name, containers in {
        "libnative": [NATIVE],
        "libpart": [NATIVE, OLD],
        "libptx": [PTX_ONLY, NATIVE],
        "libold": [OLD],
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.so").write_bytes(library(*containers))


def scan(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["startup", "scan", *argv])
    said = capsys.readouterr()
    return int(end.value.code or 0), said.out, said.err


def test_libraries_stand_worst_first_with_what_to_do(capsys):
    code, text, _ = scan(capsys, ".", "--compute-capability", "9.0")
    assert code == 0
    places = [text.index(f"{name}.so") for name in ("libold", "libptx", "libpart", "libnative")]
    assert places == sorted(places)
    for shown in (
        "1 cannot run, 1 compiled at load (up to 3 MiB of PTX), 1 native in part, 1 native",
        "compiled: 3 MiB of PTX, 1 of 2",
        "native in part: 1 of 2",
        "TORCH_CUDA_ARCH_LIST=9.0",
        "CUDA_CACHE_MAXSIZE",
    ):
        assert shown in text


def test_words_are_explained_only_where_they_are_used(capsys):
    _, text, _ = scan(capsys, "libnative", "--compute-capability", "9.0")
    assert "libnative.so" in text and "TORCH_CUDA_ARCH_LIST" not in text and "in part" not in text


def test_several_gpus_stand_side_by_side(capsys):
    _, text, _ = scan(capsys, "libptx", "--compute-capability", "9.0", "--compute-capability", "sm_120")
    assert "for 9.0" in text and "for 12.0" in text
    assert "cannot run: 1" in text


@pytest.mark.parametrize(
    ("gate", "folder", "expected"),
    [
        ("cannot", "libold", 1),
        ("cannot", "libptx", 0),
        ("cannot", "libpart", 0),
        ("jit", "libptx", 1),
        ("jit", "libold", 1),
        ("jit", "libpart", 0),
        ("partial", "libpart", 1),
        ("partial", "libnative", 0),
    ],
)
def test_a_gate_holds_for_its_verdict_and_worse(capsys, gate, folder, expected):
    code, _, _ = scan(capsys, folder, "--compute-capability", "9.0", "--fail-on", gate)
    assert code == expected


def test_json_on_standard_output_is_one_document(capsys):
    code, text, _ = scan(capsys, ".", "--compute-capability", "9.0", "--json", "-")
    document = json.loads(text)
    assert (code, document["schema"], len(document["libraries"])) == (0, "dynotune.device-code/1", 4)
    assert document["summaries"][0]["num_jit"] == 1
    assert {Path(each["path"]).name: each["verdicts"][0]["verdict"] for each in document["libraries"]} == {
        "libnative.so": "native",
        "libpart.so": "partial",
        "libptx.so": "jit",
        "libold.so": "cannot",
    }


def test_the_document_is_read_back_as_it_was_written(capsys, tmp_path):
    from dynotune.schema import document
    from dynotune.schema.device_code import DeviceCode

    scan(capsys, ".", "--compute-capability", "9.0", "--json", "found.json")
    assert len(document.read(tmp_path / "found.json", DeviceCode).libraries) == 4


def test_problems_are_shown_and_harmless_to_the_terminal(capsys, tmp_path):
    (tmp_path / "libnative" / "evil\x1b[31m.so").write_bytes(library(NATIVE)[:200])
    _, text, _ = scan(capsys, "libnative", "--compute-capability", "9.0")
    assert "Could not be read" in text and "\x1b" not in text


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere"], "There is no nowhere"),
        ([".", "--compute-capability", "hopper"], "hopper is not a compute capability"),
        ([".", "--fail-on", "slow"], "--fail-on slow does not exist"),
        (["--python", "no-such-python"], "no-such-python is not found"),
    ],
)
def test_wrong_usage_is_said_with_what_to_do(capsys, argv, said):
    code, _, err = scan(capsys, *argv)
    assert code == 2 and said in err and "next:" in err


def test_a_command_that_another_program_decides_about_is_refused(capsys):
    code, _, err = scan(capsys, "--compute-capability", "9.0", "--", "bash", "train.sh")
    assert code == 3 and "bash decides which Python runs" in err and "--python" in err


def test_the_interpreter_of_a_command_is_scanned_and_the_command_not_run(capsys, tmp_path):
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    code, text, _ = scan(
        capsys, "--compute-capability", "9.0", "--json", "-", "--", sys.executable, "train.py"
    )
    assert code == 0 and json.loads(text)["num_files"] > 10
    assert not (tmp_path / "ran").exists()


def test_the_command_line_starts_without_numpy_or_torch(tmp_path):
    program = (
        "import sys\nfrom dynotune import cli\n"
        "try:\n    cli.main(['startup', 'scan', '.', '--compute-capability', '9.0'])\n"
        "finally:\n    assert not {'numpy', 'torch', 'scipy'} & set(sys.modules)\n"
    )
    source = str(Path(dynotune.__file__).parent.parent)
    env = os.environ | {"PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr
