"""Device code in a file as cuobjdump lists it, beside what `dynotune.probe` reads."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from dynotune.probe.gpu_code import device_code

LISTED = re.compile(r"^(ELF|PTX) file\s+\d+: .*\.(sm_\d+[af]?)\.(?:cubin|ptx)$", re.MULTILINE)


def find_tool(name: str) -> str | None:
    """Return the path of a tool of CUDA, also where CUDA's own folder is not on PATH; None without it."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/cuda/bin")


def listed(file: Path) -> tuple[dict[str, list[str]], bool]:
    """What cuobjdump lists, and whether it got to the end; of some libraries it says that they are
    damaged."""
    forms: dict[str, list[str]] = {"ELF": [], "PTX": []}
    whole = True
    for option in ("-lelf", "-lptx"):
        done = subprocess.run(
            [find_tool("cuobjdump") or "cuobjdump", option, file], capture_output=True, text=True, timeout=280
        )
        whole &= "fatal" not in done.stdout + done.stderr
        for form, name in LISTED.findall(done.stdout):
            forms[form].append(name)
    return forms, whole


def read(file: Path) -> dict[str, list[str]]:
    found = device_code.in_file(file)
    assert found.problems == []
    forms: dict[str, list[str]] = {"ELF": [], "PTX": []}
    for each in found.containers:
        for code in each:
            if code.form in ("machine", "ptx"):
                forms["ELF" if code.form == "machine" else "PTX"].append(f"sm_{code.sm}{code.suffix}")
    return forms


def assert_agrees(file: Path) -> tuple[int, bool]:
    """Entries that were read, and whether cuobjdump listed all of the file. Raises AssertionError."""
    theirs, whole = listed(file)
    ours = read(file)
    for form, names in theirs.items():
        # cuobjdump shows `f` targets as plain ones: of machine code always, of PTX in older versions.
        said = [
            name if name == shown else name.removesuffix("f")
            for name, shown in zip(ours[form], names, strict=False)
        ]
        assert said == names, f"{file.name}, {form}"
        assert len(names) == len(ours[form]) or not whole, f"{file.name}, {form}"
    return sum(map(len, ours.values())), whole
