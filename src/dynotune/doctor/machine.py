"""Shared by rules on machine and environment: GPUs and their load, shares of a step, and values of
variables."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dynotune.doctor import policy
from dynotune.doctor.observation_view import Missing, ObservationView, or_else
from dynotune.schema.attribution import Shares
from dynotune.schema.diagnosis import Severity
from dynotune.schema.facts import Unknown
from dynotune.schema.setting import UNSET, Setting

NOT_MEASURED = Unknown("the machine alone does not tell what a step loses; dynotune diagnose measures it")
OFF = frozenset({"", "0", "false", "off", "no", "n"})
MOST_GPUS = 64
"""Most GPUs in one machine. A record with more is refused."""
DIAGNOSE = "dynotune diagnose -- COMMAND watches it at work"


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a GPU.

    Args:
        reasons: from clock event reason to its share of the samples.
        clock_mhz: clock of the multiprocessors.
        when: words for the time of the load: while the command ran, or now.
    """

    utilisation_percent: float
    reasons: dict[str, float]
    clock_mhz: float
    when: str


def no_gpu(view: ObservationView) -> bool:
    """Tell whether the machine certainly has no GPU."""
    return view.fact_or_none("gpu.count") == 0


def gpus(view: ObservationView) -> list[str]:
    """Return the prefixes of the facts of visible GPUs: `gpu`, `gpu1`, …; empty if there is none.

    Raises Missing: the number of GPUs is not known.
    """
    count = int(min(view.number("gpu.count"), MOST_GPUS))
    return ["gpu" if at == 0 else f"gpu{at}" for at in range(count)]


def gpu_in_words(view: ObservationView, gpu: str) -> str:
    """Name the GPU: `the GPU`, or `GPU 3` if there are several, as CUDA counts them."""
    return "the GPU" if view.fact_or_none("gpu.count") == 1 else f"GPU {gpu.removeprefix('gpu') or 0}"


def gpu_label(view: ObservationView, gpu: str) -> str:
    """Name the GPU as `gpu_in_words` does, at the beginning of a line of evidence."""
    return gpu_in_words(view, gpu).removeprefix("the ")


def in_words(names: Sequence[str]) -> str:
    """Join words as `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def gpu_option(view: ObservationView, gpu: str) -> str:
    """Return the option that restricts nvidia-smi to this GPU."""
    index = view.number_or_none(f"{gpu}.index")
    return "" if index is None else f" -i {index:g}"


def is_watched(view: ObservationView) -> bool:
    """Tell whether a command ran while samples were taken."""
    return any(name.startswith("window.") for name in view.observation.facts)


def load(view: ObservationView, gpu: str, *, least_percent: float = policy.BUSY_PERCENT) -> Load:
    """Return a GPU's load under the watched command; without a command, its load now if the GPU is busy.

    Raises Missing: the GPU is idle, or its load is not known. Clocks and link of an idle GPU are meaningless.
    """
    if is_watched(view):
        window = window_of(gpu)
        busy = view.number(f"{window}.gpu_utilisation_percent")
        if busy < least_percent:
            raise Missing("a busy GPU", f"the command kept it busy for {busy:.0f}% of the time")
        reasons = dict(map(_reason, view.words(f"{window}.clock_reasons")))
        return Load(busy, reasons, view.number(f"{window}.sm_clock_mhz"), "while the command ran")
    busy = view.number(f"{gpu}.utilisation_percent")
    reasons = dict.fromkeys(view.words(f"{gpu}.clock_reasons"), 1.0)
    if busy < least_percent or "gpu-idle" in reasons:
        raise Missing("a busy GPU", f"it is idle now; {DIAGNOSE}")
    return Load(busy, reasons, view.number(f"{gpu}.sm_clock_mhz"), "now")


def window_of(gpu: str) -> str:
    """Return the prefix of the facts that come from samples of this GPU."""
    return f"window{gpu.removeprefix('gpu')}"


def _reason(text: str) -> tuple[str, float]:
    """Split `sw-power-cap 0.80` into a reason and its share of the samples."""
    name, _, share = text.partition(" ")
    try:
        return name, float(share or 1.0)
    except ValueError:
        raise Missing("window.clock_reasons", f"{text!r} is no reason with a share") from None


def at_work(view: ObservationView, gpu: str, name: str) -> float:
    """Return a number that is meaningful only under load: of the watched command, else of now if the GPU is
    busy.

    Raises Missing: as `load`.
    """
    load(view, gpu)
    return view.number(f"{window_of(gpu) if is_watched(view) else gpu}.{name}")


def shares(view: ObservationView) -> Shares | None:
    """Return the shares of a step; None if no command was watched."""
    return or_else(lambda: view.attribution.shares, None)


def without_cuda(view: ObservationView) -> bool:
    """Tell whether torch is certainly built without CUDA."""
    return "torch.cuda" in view.observation.facts and view.observation.facts["torch.cuda"] is None


def severity_on_gpu(view: ObservationView, severity: Severity) -> Severity:
    """Return `severity`; low without a GPU or with a torch that cannot use one, because nothing is lost
    then."""
    return "low" if no_gpu(view) or without_cuda(view) else severity


def measured(share: float | None) -> float | Unknown:
    """Return the bound of a cost; Unknown if no command was watched."""
    return NOT_MEASURED if share is None else min(max(share, 0.0), 1.0)


def part_of_step(view: ObservationView, *names: str) -> float | Unknown:
    """Return the sum of these shares of a step, such as `host`; Unknown without shares or a watched
    command."""
    parts = shares(view)
    return measured(None if parts is None or not names else sum(getattr(parts, name) for name in names))


def cores_in_use(view: ObservationView) -> float | None:
    """Return how many cores all programs take; None if that is not known."""
    own, by_others = (view.number_or_none(f"window.{whose}_cpu_s_per_s") for whose in ("tree", "others"))
    return None if own is None else own + max(0.0, by_others or 0.0)


def is_on(value: str | None) -> bool:
    """Tell whether a switch has a value other than off."""
    return value is not None and value.strip().lower() not in OFF


def unset(*names: str) -> list[Setting]:
    """Return settings that unset these variables."""
    return [Setting(f"env.{name}", UNSET) for name in names]


def version(text: str) -> tuple[int, int]:
    """Return major and minor version: `2.11.0+cu130` is (2, 11). Raises Missing: `text` is no version."""
    parts = text.split("+")[0].split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (ValueError, IndexError):
        raise Missing("a version", f"{text!r} is none") from None


def whole_number(text: str | None) -> int | None:
    """Return the number; None if the text is no whole number."""
    return int(text) if text is not None and re.fullmatch(r"\s*[+-]?\d{1,19}\s*", text) else None
