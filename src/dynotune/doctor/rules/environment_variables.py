"""Variables: one each that slows a program down, by the values that count and what they do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from dynotune.doctor import policy
from dynotune.doctor.declaration import Judgement, Judgements, Rule, machine_rule
from dynotune.doctor.machine import is_on, part_of_step, severity_on_gpu
from dynotune.doctor.observation_view import ObservationView
from dynotune.schema.diagnosis import Kind, Severity


def is_off(value: str) -> bool:
    """Tell whether a switch is set to off."""
    return not is_on(value)


def is_one_of(*values: str) -> Callable[[str], bool]:
    """Make a test for these values, in any case."""
    return lambda value: value.strip().upper() in values


def is_set_to(view: ObservationView, name: str, counts: Callable[[str], bool]) -> bool:
    """Tell whether a variable is set to a value that counts."""
    value = view.variable(name)
    return value is not None and counts(value)


def variable_rule(
    id: str,
    name: str,
    counts: Callable[[str], bool],
    severity: Severity,
    *,
    remedy: str,
    bound: Iterable[str] = (),
    kind: Kind = "speed",
    evidence: Iterable[str] = (),
) -> Rule:
    """Make a rule that fires if the variable `name` has a value that `counts`, and offers to unset it.

    Args:
        severity: on a machine with a GPU, if no command was watched.
        bound: the shares of a watched command's step that bound the cost.
    """

    def judge(view: ObservationView) -> Judgements:
        if is_set_to(view, name, counts):
            yield Judgement(
                kind=kind,
                share=part_of_step(view, *bound) if kind == "speed" else None,
                severity=None if bound else severity_on_gpu(view, severity),
                otherwise=severity,
                variables=[name],
                evidence=list(evidence),
                remedy=remedy,
            )

    return machine_rule(id=id)(judge)


def _workspace_bytes(value: str) -> int | None:
    """Return the size that a value names: `:4096:2:16:8` is 8.125 MiB. None for a value that torch ignores."""
    pairs = re.findall(r":(\d{1,9}):(\d{1,9})", value)
    if not pairs or "".join(f":{size}:{count}" for size, count in pairs) != value:
        return None
    return sum(int(size) * int(count) for size, count in pairs) * 1024


def _is_small_workspace(value: str) -> bool:
    size = _workspace_bytes(value)
    return size is not None and size < policy.DEFAULT_CUBLAS_WORKSPACE_BYTES


VARIABLES = (
    variable_rule(
        "launch-blocking-on",
        "CUDA_LAUNCH_BLOCKING",
        is_on,
        "high",
        remedy="Unset it. Set it only to find the kernel that fails.",
        bound=["host", "transfer"],
    ),
    variable_rule(
        "no-memory-caching-on",
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        lambda value: True,
        "high",
        remedy="Unset it. A value of 0 switches the cache off, too.",
        bound=["host"],
    ),
    variable_rule(
        "cublas-workspace-small",
        "CUBLAS_WORKSPACE_CONFIG",
        _is_small_workspace,
        "medium",
        remedy="Unset it, or use :4096:8 if results must repeat.",
        evidence=["sizes are in KiB: :SIZE:COUNT"],
    ),
    variable_rule(
        "module-loading-eager",
        "CUDA_MODULE_LOADING",
        is_one_of("EAGER"),
        "medium",
        remedy="Unset it: kernels are then loaded at their first call.",
        kind="start",
    ),
)
