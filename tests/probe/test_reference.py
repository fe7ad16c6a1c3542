from __future__ import annotations

import re
from pathlib import Path

from dynotune.probe import compatibility, gpu, machine, torch_build
from dynotune.probe.facts import host_memory, host_processors
from dynotune.probe.sampling import window_facts
from dynotune.schema.facts import Unknown

PAGE = Path(__file__).parents[2] / "docs/reference/facts.md"


def described() -> set[str]:
    """Names in the first column of the tables."""
    rows = re.findall(r"^\| (`[^|]+`) \|", PAGE.read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_fact_is_described():
    facts = machine({"NCCL_DEBUG": "INFO"}, python=Unknown("not asked"), deadline_s=60)
    single = {name for name in facts if not name.startswith(("env.", "env_from."))}
    always = {*gpu.NAMES, *host_memory.NAMES, *host_processors.NAMES, *torch_build.NAMES}
    assert single | always | {*compatibility.NAMES, *window_facts.NAMES} <= described()


def test_no_fact_is_described_that_is_not_told():
    known = {*gpu.NAMES, *host_memory.NAMES, *host_processors.NAMES, *torch_build.NAMES, *compatibility.NAMES}
    known |= {
        *window_facts.NAMES,
        "gpu.nvml_indices",
        "gpu.order_known",
        "gpu.topology",
        "host.container_shm_default",
    }
    known |= set(machine({}, python=Unknown("not asked"), deadline_s=60))
    assert described() <= known | {"package.NAME", "env.NAME", "env_from.NAME"}
