"""A knob with a value."""

from collections.abc import Iterable, Sequence

import msgspec

from dynotune.schema.knob import Scalar, spelled

UNSET = "@unset"


class Setting(msgspec.Struct, frozen=True):
    """Setting `knob=value`. The value `@unset` removes an environment variable.

    `knob`: the knob's id, or `env.NAME`. `value`: of the knob's type.
    """

    knob: str
    value: Scalar

    def __str__(self) -> str:
        return f"{self.knob}={spelled(self.value)}"


def one_arm(settings: Sequence[Setting]) -> list[Setting]:
    """Return the first setting of each knob, since an arm has one value of a knob."""
    return list({setting.knob: setting for setting in reversed(settings)}.values())[::-1]


def over(base: Sequence[Setting], settings: Sequence[Setting]) -> list[Setting]:
    """Return the settings of both lists; for a knob in both, the value in `settings`."""
    return list({setting.knob: setting for setting in (*base, *settings)}.values())


def batches_ahead(settings: Iterable[Setting]) -> int:
    """Return the most batches that a loader's workers have ready, with the largest values that settings ask
    for."""
    asked = {"loader.num_workers": 0, "loader.prefetch_factor": 2}
    for one in settings:
        if one.knob in asked and isinstance(one.value, int):
            asked[one.knob] = max(asked[one.knob], one.value)
    return asked["loader.num_workers"] * asked["loader.prefetch_factor"]
