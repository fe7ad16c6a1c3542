"""What rules on machine and environment share: which GPUs there are, whether they are at work, who set a variable."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dynotune.doctor import policy
from dynotune.doctor.observation_view import Missing, Seen
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown, Value
from dynotune.schema.observation import Shares
from dynotune.schema.setting import UNSET, Setting
from dynotune.schema.trace_summary import Place
from dynotune.text import words

NOT_MEASURED = Unknown("the machine alone does not tell what a step loses; dynotune diagnose measures it")
OFF = frozenset({"", "0", "false", "off", "no", "n"})
MOST_GPUS = 64
"""Of one machine; a record that claims more is not believed."""
DIAGNOSE = "dynotune diagnose -- COMMAND watches it at work"


@dataclass(frozen=True, slots=True)
class Load:
    """A GPU at work.

    Args:
        reasons: clock event reason to its share of the samples.
        clock_mhz: of the multiprocessors.
        when: of a watched command, or now, in words.
    """

    utilisation_percent: float
    reasons: dict[str, float]
    clock_mhz: float
    when: str


def known(seen: Seen, name: str) -> Value:
    """A fact that only adds to a judgement; None where it is not known."""
    try:
        return seen.fact(name)
    except Missing:
        return None


def known_number(seen: Seen, name: str) -> float | None:
    """As `known`, of a number."""
    value = known(seen, name)
    return None if isinstance(value, bool) or not isinstance(value, int | float) else value


def mentioned(seen: Seen, *names: str) -> list[str]:
    """For evidence: those of these facts that are known."""
    return [f"{name}: {_value(name, value)}" for name in names if (value := known(seen, name)) is not None]


def _value(name: str, value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return words.num_bytes(value) if name.endswith("_bytes") and isinstance(value, int | float) else str(value)


# GPUs


def no_gpu(seen: Seen) -> bool:
    """There is none, for certain."""
    return known(seen, "gpu.count") == 0


def gpus(seen: Seen) -> list[str]:
    """Prefixes of the facts of the GPUs that the command sees: `gpu`, `gpu1`, …; empty where there is none.

    Raises:
        Missing: their number is not known.
    """
    count = int(min(seen.number("gpu.count"), MOST_GPUS))
    return ["gpu" if at == 0 else f"gpu{at}" for at in range(count)]


def gpu_in_words(seen: Seen, gpu: str) -> str:
    """`the GPU`, or of several `GPU 3`, as CUDA counts them."""
    return "the GPU" if known(seen, "gpu.count") == 1 else f"GPU {gpu.removeprefix('gpu') or 0}"


def gpu_label(seen: Seen, gpu: str) -> str:
    """As `gpu_in_words`, at the beginning of a line of evidence."""
    return gpu_in_words(seen, gpu).removeprefix("the ")


def in_words(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def selected(seen: Seen, gpu: str) -> str:
    """The option by which nvidia-smi takes this GPU alone."""
    index = known_number(seen, f"{gpu}.index")
    return "" if index is None else f" -i {index:g}"


def is_watched(seen: Seen) -> bool:
    """A command ran while samples were taken."""
    return any(name.startswith("window.") for name in seen.observation.facts)


def load(seen: Seen, gpu: str, *, least_percent: float = policy.BUSY_PERCENT) -> Load:
    """What the GPU does under load: of the command that was watched, else of whatever keeps it busy now.

    Raises:
        Missing: it is idle, or that is not known. Clocks and link of an idle GPU say nothing.
    """
    if is_watched(seen):
        window = window_of(gpu)
        busy = seen.number(f"{window}.gpu_utilisation_percent")
        if busy < least_percent:
            raise Missing("a busy GPU", f"the command kept it busy for {busy:.0f}% of the time")
        reasons = dict(map(_reason, seen.words(f"{window}.clock_reasons")))
        return Load(busy, reasons, seen.number(f"{window}.sm_clock_mhz"), "while the command ran")
    busy = seen.number(f"{gpu}.utilisation_percent")
    reasons = dict.fromkeys(seen.words(f"{gpu}.clock_reasons"), 1.0)
    if busy < least_percent or "gpu-idle" in reasons:
        raise Missing("a busy GPU", f"it is idle now; {DIAGNOSE}")
    return Load(busy, reasons, seen.number(f"{gpu}.sm_clock_mhz"), "now")


def window_of(gpu: str) -> str:
    """Prefix of what the samples say of this GPU."""
    return f"window{gpu.removeprefix('gpu')}"


def _reason(text: str) -> tuple[str, float]:
    """`sw-power-cap 0.80`: a reason and its share of the samples."""
    name, _, share = text.partition(" ")
    try:
        return name, float(share or 1.0)
    except ValueError:
        raise Missing("window.clock_reasons", f"{text!r} is no reason with a share") from None


def at_work(seen: Seen, gpu: str, name: str) -> float:
    """A number that means something under load alone: of the watched command, else now if the GPU is busy.

    Raises:
        Missing: as `load`.
    """
    load(seen, gpu)
    return seen.number(f"{window_of(gpu) if is_watched(seen) else gpu}.{name}")


# What it costs


def shares(seen: Seen) -> Shares | None:
    """Where a step goes; None where no command was watched."""
    try:
        return seen.attribution.shares
    except Missing:
        return None


def weighed(seen: Seen, severity: Severity) -> Severity:
    """`severity`, or low where there is no GPU, or a torch that cannot use one: then nothing is lost here."""
    without_cuda = "torch.cuda" in seen.observation.facts and seen.observation.facts["torch.cuda"] is None
    return "low" if no_gpu(seen) or without_cuda else severity


def bounded(seen: Seen, share: float | None, otherwise: Severity) -> tuple[float | Unknown, Severity]:
    """The share and severity of a finding whose bound is `share`; `otherwise` where no command was watched."""
    if share is None:
        return NOT_MEASURED, weighed(seen, otherwise)
    share = min(max(share, 0.0), 1.0)
    return share, policy.severity(share)


# Variables


def is_on(value: str | None) -> bool:
    """A switch that is set to anything but off."""
    return value is not None and value.strip().lower() not in OFF


def unset(*names: str) -> list[Setting]:
    """Settings that take these variables away."""
    return [Setting(f"env.{name}", UNSET) for name in names]


def told(seen: Seen, *names: str) -> list[str]:
    """A line of evidence for each variable: its value, and who set it."""
    lines = []
    for name in names:
        value, who = seen.variable(name), seen.who_set(name)
        text = f"{name} is not set" if value is None else f"{name}={value}"
        lines.append(f"{text}, {who}" if who else text)
    return lines


def place_of(seen: Seen, *names: str) -> Place:
    """Where the program itself set the first of these variables that it set; "" where it set none."""
    for name in names:
        for process in [] if isinstance(seen.observation.processes, Unknown) else seen.observation.processes:
            for change in reversed(process.environment_changes):
                if change.name == name and not change.kept:
                    return Place(function=f"{change.file}({change.line}): {change.function}")
    return Place()


def version(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: "2.13.0+cu130" is (2, 13, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def whole_number(text: str | None) -> int | None:
    """None where it is no whole number."""
    return int(text) if text is not None and re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text) else None
