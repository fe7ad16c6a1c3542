"""Values of knobs: those that the program has, and those to try, sized to the machine."""

import re
from collections.abc import Iterable, Mapping, Sequence

from dynotune import knobs
from dynotune.launch.process import ALLOC_CONF_NAMES, split_alloc_conf
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Knob, Scalar
from dynotune.schema.observation import Observation, ProcessState
from dynotune.schema.setting import UNSET, Setting

MOST_VALUES = 4
"""Values of one knob: the cost has one minimum, and half or twice the best value is close to it."""
GRAPHS, COMPILED = Setting("compile.mode", "reduce-overhead"), Setting("compile.mode", "default")

Present = dict[str, Scalar]
"""Knob to value, for knobs known to have a single value throughout the program."""


# What the program has


def present(observation: Observation, env: Mapping[str, str]) -> Present:
    """Return the values observed in the first rank; `env`: variables that the command inherits."""
    processes = [] if isinstance(observation.processes, Unknown) else observation.processes
    conf = next((env[name] for name in ALLOC_CONF_NAMES if env.get(name)), "")
    words = {"True": True, "False": False}
    of_allocator = {
        f"alloc.{key}": words.get(text, _number(text)) for key, text in split_alloc_conf(conf).items()
    }
    return (_of_process(processes[0]) if processes else {}) | of_allocator


def has(setting: Setting, present: Present, env: Mapping[str, str]) -> bool:
    """Tell whether the program already has this setting, as far as is known."""
    if setting.knob.startswith("env."):
        return env.get(setting.knob.removeprefix("env."), UNSET) == setting.value
    if setting.knob not in present:
        return False
    now = present[setting.knob]
    return now == setting.value and isinstance(now, bool) == isinstance(setting.value, bool)


def _of_process(process: ProcessState) -> Present:
    found: Present = {}
    for knob in knobs.all_knobs():
        if knob.live_fact:
            _add(found, knob.id, (_value(knob, seen) for seen in _seen(process, knob.live_fact)))
    return found


def _seen(process: ProcessState, live_fact: str) -> list[object]:
    """Return what each part of the program shows of a knob; empty if nothing is known."""
    group, _, name = live_fact.partition(".")
    match group:
        case "loaders":
            return [getattr(loader, name) for loader in process.loaders]
        case "optimizers":
            return [getattr(optimizer, name) for optimizer in process.optimizers]
        case "models":
            return [getattr(model, name) for model in process.models]
        case "compilation":
            return _modes(process)
    seen = process.live.get(live_fact)
    if isinstance(seen, list):
        return [str(each).removeprefix("torch.") for each in seen] or ["nothing"]
    return [] if seen is None else [seen]


def _modes(process: ProcessState) -> list[object]:
    if process.models and not any(model.compiled for model in process.models):
        return ["off"]
    if isinstance(process.compilation, Unknown) or not process.models:
        return []
    return [mode or "default" for mode in process.compilation.modes]


def _value(knob: Knob, seen: object) -> object:
    """Return the knob's value for what was seen; None if that is no value of the knob."""
    return knob.live_values.get(str(seen).lower()) if knob.live_values else seen


def _add(found: Present, knob: str, values: Iterable[object]) -> None:
    """Add a value only if all parts of the program agree on it."""
    known = list(values)
    first = known[0] if known else None
    if isinstance(first, bool | int | float | str) and all(value == first for value in known):
        found[knob] = first


def _number(text: str) -> Scalar:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# Values to try


def num_cores(facts: Facts, num_ranks: int) -> int | None:
    """Count the cores of one rank, by affinity and quota; None if that is not known."""
    cores = facts.get("host.num_cores")
    if isinstance(cores, bool) or not isinstance(cores, int):
        return None
    return max(1, cores // max(1, num_ranks))


def beyond_cores(setting: Setting, cores: int | None) -> bool:
    """Tell whether the setting asks for more threads than cores; more workers than cores can help if they
    wait."""
    counted = isinstance(setting.value, int) and not isinstance(setting.value, bool)
    of_threads = knobs.get(setting.knob).takes_cores == "threads"
    return cores is not None and counted and of_threads and int(setting.value) > cores


def around(settings: Sequence[Setting], present: Present, cores: int | None) -> list[Setting]:
    """Return one finding's `settings`, and neighbours of a single value that is only the most likely of many.

    A finding gives the number of workers that keep up if each is as fast as the loading process was. Half and
    twice this number are tried too, up to the cores or the finding's number; not if the finding wants fewer
    workers.
    """
    found = list(dict.fromkeys(settings))
    if GRAPHS in found and COMPILED not in found:
        # A model that is called twice in a step does not run with CUDA graphs.
        found.insert(found.index(GRAPHS) + 1, COMPILED)
    named = sorted(
        {int(s.value) for s in found if s.knob == "loader.num_workers" and not isinstance(s.value, str)}
    )
    now = present.get("loader.num_workers", 0)
    if not named or cores is None or not isinstance(now, int) or named[0] <= now:
        return found
    near = (*named, named[0] // 2, 2 * named[-1], 2)
    most = max(cores, named[-1])
    more = sorted(num for num in {min(num, most) for num in near} if num > now)
    others = [num for num in more if num not in named]
    # Keep the extremes first, if there are too many.
    keep = {*named, *[*others[-1:], *others[:-1]][: max(0, MOST_VALUES - len(named))]}
    rest = [setting for setting in found if setting.knob != "loader.num_workers"]
    return [*(Setting("loader.num_workers", num) for num in more if num in keep), *rest]


def beside_workers(settings: Sequence[Setting], present: Present) -> list[Setting]:
    """Return further settings to try if `settings` add workers to a loader without any."""
    given = any(setting.knob == "loader.num_workers" and setting.value != 0 for setting in settings)
    if not given or present.get("loader.num_workers") != 0:
        return []
    return [Setting("loader.prefetch_factor", 4), Setting("loader.persistent_workers", True)]


def some(knob_id: str, present: Present, cores: int | None) -> list[Setting]:
    """Return values to try for a knob that the user names without a value, except the program's own value.

    Raises UsageError: the knob takes too many values to choose from.
    """
    knob = knobs.get(knob_id)
    values: Sequence[Scalar] = knob.values
    if knob.type == "bool":
        values = (True, False)
    elif knob.takes_cores and cores is not None:
        # The largest few of 1, 2, 4 … and the number of cores itself.
        powers = [1 << exponent for exponent in range(cores.bit_length()) if 1 << exponent < cores]
        values = [*powers, cores][-MOST_VALUES:]
    elif knob.tries:
        values = knob.tries
    if not values:
        raise UsageError(
            f"--try {knob_id} names no value, and dynotune has none to suggest.",
            hint=f"Name it: --try {knob_id}=VALUE, or several: --values {knob_id}=A,B,C. "
            f"`dynotune knobs {knob_id}` lists them.",
        )
    if knob_id in present:
        return [Setting(knob_id, value) for value in values if value != present[knob_id]]
    # By the first word of the default's description: the value that applies if nobody sets the knob.
    default = re.split(r"[^\w-]", knob.default.lower(), maxsplit=1)[0]
    return [Setting(knob_id, value) for value in values if str(value).lower() != default]
