"""Documents on running a command at lower precisions: speed, memory, and errors of results."""

import msgspec

from dynotune.schema.comparison import Comparison
from dynotune.schema.setting import Setting
from dynotune.schema.study import Guarded


class Change(msgspec.Struct, frozen=True):
    """Change of a metric's mean (higher is better) in an arm, paired over `num_samples`; `ci`: 95%
    interval."""

    mean: float
    ci: tuple[float, float]
    num_samples: int


class Band(msgspec.Struct, frozen=True):
    """Means of the last losses under several seeds: lowest and highest of the baseline, and the arm's
    mean."""

    num_seeds: int
    baseline: tuple[float, float]
    arm: float

    @property
    def is_within(self) -> bool:
        return self.baseline[0] <= self.arm <= self.baseline[1]


class PrecisionArm(msgspec.Struct, frozen=True, kw_only=True):
    """One precision, compared with the command as written.

    Args:
        speed, results: comparisons of speed and of results; None if unknown, see `reasons`.
        settings: settings of the arm; more than one if modules are left out of quantization.
        peak_bytes: peak device memory in bytes, from a separate run; None without a GPU.
    """

    name: str
    settings: list[Setting]
    speed: Comparison | None = None
    results: Guarded | None = None
    peak_bytes: int | None = None
    metric: Change | None = None
    band: Band | None = None
    reasons: list[str] = []

    @property
    def is_worth_it(self) -> bool:
        """Return whether the arm is faster, its errors suit its number of bits, and no loss of the metric is
        proved.

        If rounding errors alone change the course of a training, errors mean nothing: the spread over seeds
        decides.
        """
        is_sound = (
            self.results.ok if self.results is not None else self.band is not None and self.band.is_within
        )
        is_faster = self.speed is not None and self.speed.verdict == "faster"
        return is_faster and is_sound and not (self.metric and self.metric.ci[1] < 0)


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """Document `precision.json`. `own`: the command's own precision; `metric`: `module:function`, or ""."""

    schema: str = "dynotune.precision/1"
    command: list[str]
    own: str
    peak_bytes: int | None = None
    metric: str = ""
    arms: list[PrecisionArm] = []
