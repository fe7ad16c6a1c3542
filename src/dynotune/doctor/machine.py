"""Shared by rules on machine and environment: GPUs and their load, who set a variable; how two machines differ."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from dynotune.doctor import policy
from dynotune.doctor.observation_view import Missing, ObservationView, or_else
from dynotune.schema.attribution import Shares
from dynotune.schema.diagnosis import Difference, Severity
from dynotune.schema.facts import Facts, Unknown, Value
from dynotune.schema.setting import UNSET, Setting

NOT_MEASURED = Unknown("the machine alone does not tell what a step loses; dynotune diagnose measures it")
OFF = frozenset({"", "0", "false", "off", "no", "n"})
MOST_GPUS = 64
"""Most GPUs in one machine. A record with more is refused."""
DIAGNOSE = "dynotune diagnose -- COMMAND watches it at work"

_DIFFERENCES = tomllib.loads(files(__package__).joinpath("machine_differences.toml").read_text("utf-8"))
MATTERS: dict[str, str] = _DIFFERENCES["matters"]
"""Prefix of a fact to why a difference can matter, in the order of display; the longest prefix applies."""

# Facts that identify a machine, or describe its state at this moment.
LEFT_OUT = re.compile(
    r"gpu\d*\.(uuid|index|nvml_indices|processes|temperature_c|power_w|utilisation_percent|memory_used_bytes|clock_reasons"
    r"|sm_clock_mhz|memory_clock_mhz|pcie_generation|pcie_width|pcie_replays|pids_comparable|cpu_affinity)"
    r"|gpu\.nvml_indices|host\.(load_1min|memory_available_bytes|shm_free_bytes|swap_used_bytes|kernel_version)"
    r"|python\.(executable|include)|torch\.folder|env_from\..*|window\d*\..*|live\..*"
    r"|env\.(PYTHONPATH|.*_CACHE_DIR|.*_PATH|.*_DIR|MASTER_ADDR|MASTER_PORT|.*RUN_ID|.*JOB_ID)"
)
NEARLY = 0.02
"""Relative difference of sizes and rates. Smaller ones come from another firmware."""
SIZES = ("_bytes", "_mhz", "_w")


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
    """Return a number that is meaningful only under load: of the watched command, else of now if the GPU is busy.

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
    """Return `severity`; low without a GPU or with a torch that cannot use one, because nothing is lost then."""
    return "low" if no_gpu(view) or without_cuda(view) else severity


def measured(share: float | None) -> float | Unknown:
    """Return the bound of a cost; Unknown if no command was watched."""
    return NOT_MEASURED if share is None else min(max(share, 0.0), 1.0)


def part_of_step(view: ObservationView, *names: str) -> float | Unknown:
    """Return the sum of these shares of a step, such as `host`; Unknown without shares or a watched command."""
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


def differences(here: Facts, there: Facts) -> list[Difference]:
    """Return the facts in which two machines differ, the most important first.

    A fact that is unknown on both machines is left out. A variable known on only one machine is unset on the other.
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
