"""Which values of a knob are tried, sized to the machine that they are tried on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dynotune import knobs
from dynotune.schema.errors import UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.knob import Knob, Scalar
from dynotune.schema.setting import Setting
from dynotune.search.present import Present

MOST_VALUES = 4
"""Of one knob: its cost has one best value, and half as many or twice as many are near enough to it."""
GRAPHS, COMPILED = Setting("compile.mode", "reduce-overhead"), Setting("compile.mode", "default")
_PER_CORE = ("loader.num_workers", "host.num_threads")
"""More of these than cores mostly take turns on them."""


def num_cores(facts: Facts, num_ranks: int) -> int | None:
    """Cores of one rank, by affinity and quota; None where that is not known."""
    cores = facts.get("host.num_cores")
    if isinstance(cores, bool) or not isinstance(cores, int):
        return None
    return max(1, cores // max(1, num_ranks))


def beyond_cores(setting: Setting, cores: int | None) -> bool:
    """Whether it asks for more threads than there are cores; workers may wait, and a finding knows how much they do."""
    counted = isinstance(setting.value, int) and not isinstance(setting.value, bool)
    return cores is not None and setting.knob == "host.num_threads" and counted and int(setting.value) > cores


def around(settings: Sequence[Setting], present: Present, cores: int | None) -> list[Setting]:
    """`settings`, that one finding names, and their neighbours where one value is only the likeliest of many.

    A finding knows how many workers would keep up if each were as fast as the loading process was. Half of them and
    twice as many are tried too, within the cores or what it names; not where it asks for fewer than there are.
    """
    found = [*_with_milder(list(dict.fromkeys(settings)))]
    named = sorted({int(s.value) for s in found if s.knob == "loader.num_workers" and not isinstance(s.value, str)})
    now = present.get("loader.num_workers", 0)
    if not named or cores is None or not isinstance(now, int) or named[0] <= now:
        return found
    near = (*named, named[0] // 2, 2 * named[-1], 2)
    most = max(cores, named[-1])
    more = sorted(num for num in {min(num, most) for num in near} if num > now)
    keep = set(named) | set(_spread([num for num in more if num not in named], MOST_VALUES - len(named)))
    rest = [setting for setting in found if setting.knob != "loader.num_workers"]
    return [*(Setting("loader.num_workers", num) for num in more if num in keep), *rest]


def _with_milder(settings: Sequence[Setting]) -> Iterator[Setting]:
    """After CUDA graphs, compiling without them: a model that is called twice in a step does not run with them."""
    for setting in settings:
        yield setting
        if setting == GRAPHS and COMPILED not in settings:
            yield COMPILED


def beside_workers(settings: Sequence[Setting], present: Present) -> list[Setting]:
    """What is worth a try beside workers, where `settings` give some to a loader that has none."""
    given = any(setting.knob == "loader.num_workers" and setting.value != 0 for setting in settings)
    if not given or present.get("loader.num_workers") != 0:
        return []
    return [Setting("loader.prefetch_factor", 4), Setting("loader.persistent_workers", True)]


def some(knob_id: str, present: Present, cores: int | None) -> list[Setting]:
    """Values of a knob that the user names without one; not the one that the program has.

    Raises:
        UsageError: it takes so many that none of them suggests itself.
    """
    knob = knobs.get(knob_id)
    values: Sequence[Scalar] = knob.values
    if knob.type == "bool":
        values = (True, False)
    elif knob_id in _PER_CORE and cores is not None:
        # The largest few of 1, 2, 4 … and the cores themselves.
        powers = [1 << exponent for exponent in range(cores.bit_length()) if 1 << exponent < cores]
        values = [*powers, cores][-MOST_VALUES:]
    elif knob_id == "loader.prefetch_factor":
        values = (2, 4, 8)
    if not values:
        raise UsageError(
            f"--try {knob_id} names no value, and none suggests itself.",
            hint=f"Name it: --try {knob_id}=VALUE, or several: --values {knob_id}=A,B,C. "
            f"`dynotune knobs {knob_id}` says which there are.",
        )
    if knob_id in present:
        return [Setting(knob_id, value) for value in values if value != present[knob_id]]
    return [Setting(knob_id, value) for value in values if not _is_default(knob, value)]


def _is_default(knob: Knob, value: Scalar) -> bool:
    """By the first word of the default in words: what holds, as far as is known, where nobody sets it."""
    return str(value).lower() == re.split(r"[^\w-]", knob.default.lower(), maxsplit=1)[0]


def _spread(values: Sequence[int], num: int) -> list[int]:
    """At most `num` of the rising values, the ends first."""
    if len(values) <= num:
        return list(values)
    order = [values[-1], values[0], *values[1:-1]]
    return order[: max(0, num)]
