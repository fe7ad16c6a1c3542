"""On what, and by which command, a result came to be."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import sys
from pathlib import Path

from dynotune import probe
from dynotune.schema.facts import Unknown

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"


def describe() -> dict[str, object]:
    """Hardware, versions and command of this process, to stand first in a result."""
    facts = {**probe.host.facts(), **probe.nvml.facts(dict(os.environ))}
    named = ("host.cpu", "host.num_cores", "host.kernel", "gpu.name", "gpu.driver")
    versions = {}
    for package in ("torch", "dynotune", "ultralytics", "lightning", "transformers", "accelerate"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "hardware": {
            name: value.reason if isinstance(value := facts.get(name), Unknown) else value for name in named
        },
        "python": sys.version.split()[0],
        "versions": versions,
    }


def without_places(text: str) -> str:
    """`text` of a result without this machine's folders: they say nothing of what was measured."""
    root = str(Path(__file__).resolve().parents[1])
    for place, name in ((root + os.sep, ""), (root, "."), (sys.prefix + os.sep, ""), (str(Path.home()), "~")):
        text = text.replace(place, name)
    return text
