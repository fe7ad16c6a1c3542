"""How two machines differ, and why a difference can matter."""

import re

import msgspec

from dynotune.schema.data_file import table
from dynotune.schema.diagnosis import Difference
from dynotune.schema.facts import Facts, Unknown, Value


class _Differences(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file machine_differences.toml."""

    matters: dict[str, str]


MATTERS = table(__package__, "machine_differences.toml", _Differences).matters
"""Prefix of a fact to why a difference can matter, in the order of display; the longest prefix applies."""

# Facts that identify a machine, or describe its state at this moment.
LEFT_OUT = re.compile(
    r"gpu\d*\.(uuid|index|nvml_indices|processes|temperature_c|power_w|utilisation_percent|memory_used_bytes"
    r"|clock_reasons|sm_clock_mhz|memory_clock_mhz|pcie_generation|pcie_width|pcie_replays"
    r"|pids_comparable|cpu_affinity)"
    r"|gpu\.nvml_indices"
    r"|host\.(load_1min|memory_available_bytes|shm_free_bytes|swap_used_bytes|kernel_version)"
    r"|python\.(executable|include)|torch\.folder|env_from\..*|window\d*\..*|live\..*"
    r"|env\.(PYTHONPATH|.*_CACHE_DIR|.*_PATH|.*_DIR|MASTER_ADDR|MASTER_PORT|.*RUN_ID|.*JOB_ID)"
)
NEARLY = 0.02
"""Relative difference of sizes and rates. Smaller ones come from another firmware."""
SIZES = ("_bytes", "_mhz", "_w")


def differences(here: Facts, there: Facts) -> list[Difference]:
    """Return the facts in which two machines differ, the most important first.

    A fact that is unknown on both machines is left out. A variable known on only one machine is unset on the
    other.
    """
    rows = []
    for name in {**here, **there}:
        if LEFT_OUT.fullmatch(name):
            continue
        ours, theirs = _value(here, name), _value(there, name)
        if ours is None and theirs is None:
            continue
        if not _same(name, ours, theirs):
            rows.append(Difference(fact=name, here=ours, there=theirs, matters=why(name)))
    return sorted(
        rows, key=lambda each: (isinstance(each.here, Unknown) + isinstance(each.there, Unknown), _rank(each))
    )


def why(name: str) -> str:
    """Return why a fact can matter; "" if no reason is known."""
    return MATTERS.get(_prefix(name), "")


def _value(facts: Facts, name: str) -> Value | Unknown:
    absent = None if name.startswith(("env.", "package.")) else Unknown("it was not asked for")
    return facts.get(name, absent)


def _same(name: str, left: Value | Unknown, right: Value | Unknown) -> bool:
    if isinstance(left, Unknown) and isinstance(right, Unknown):
        return True
    numbers = [each for each in (left, right) if isinstance(each, int | float) and not isinstance(each, bool)]
    if len(numbers) == 2 and name.endswith(SIZES):
        return abs(numbers[0] - numbers[1]) <= NEARLY * max(map(abs, numbers))
    return left == right


def _rank(difference: Difference) -> tuple[int, str]:
    order = list(MATTERS)
    prefix = _prefix(difference.fact)
    return order.index(prefix) if prefix else len(order), difference.fact


def _prefix(name: str) -> str:
    plain = re.sub(r"^gpu\d+\.", "gpu.", name)
    return max((prefix for prefix in MATTERS if plain.startswith(prefix)), key=len, default="")
