"""Bound the share of the time that a setting can save, by the diagnosis; reports compare the bounds with
results."""

import math
from collections.abc import Sequence

from dynotune import knobs
from dynotune.schema.attribution import Shares
from dynotune.schema.diagnosis import Diagnosis, Finding
from dynotune.schema.facts import Unknown
from dynotune.schema.run import Objective
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, Study
from dynotune.search.values import Present

OF_TIME: tuple[Objective, ...] = ("throughput",)
"""Objectives whose savings the share of a step bounds; the share does not bound the power of a waiting
device."""
RUNS_DIFFER = 0.05
"""Relative difference between two equal runs, allowed for since upper bound and unrecorded step are measured
only once."""
_OF_MAKING = ("collate-heavy", "decode-bound")
"""Findings whose share is the cost of making batches, a cost that no setting changes."""

_DOES_MORE = (("precision.autocast", "fp32-matmul-no-tf32"),)
"""The finding's share is the saving of TF32; half types save more of the products, and of all other
kernels."""

NOT_OF_TIME = Unknown("no share of a step's time bounds its saving")


def bound(
    setting: Setting, why: Sequence[Finding], diagnosis: Diagnosis, present: Present, objective: Objective
) -> tuple[float | Unknown, str]:
    """Return the largest share of the baseline's time that the setting can save, and the source of this
    bound.

    If all shares of the findings that name the setting are known, their sum is a bound. A setting that only
    makes batches ready sooner saves at most the step's wait for batches, and at most the gain of steps that
    get one batch again and again; and n workers make batches at most n times as fast as a single worker.
    """
    if objective not in OF_TIME:
        return NOT_OF_TIME, ""
    if is_hidden_by_launches(setting, [finding.id for finding in why]):
        return Unknown("launches hide the device's work until graphs end them"), ""
    limits: list[tuple[float, str]] = []
    why = [
        finding
        for finding in why
        if finding.id not in _OF_MAKING and not is_hidden_by_launches(setting, [finding.id])
    ]
    of_device = [finding for finding in why if (setting.knob, finding.id) in _DOES_MORE]
    shares = [finding.share for finding in why if finding not in of_device]
    names = [finding.id for finding in why if finding not in of_device]
    if of_device:
        found = diagnosis.shares
        shares.append(found.device if isinstance(found, Shares) else found)
        names.append("all that the device does")
    known = [share for share in shares if not isinstance(share, Unknown)]
    if why and len(known) == len(shares):
        limits.append((min(1.0, sum(known)), " and ".join(dict.fromkeys(names))))
    if len(known) == len(shares):
        limits += _of_loading(setting, diagnosis, present)
    if not limits:
        reasons = [share.reason for share in shares if isinstance(share, Unknown)]
        return Unknown(reasons[0] if reasons else "no finding names it"), ""
    share, by = min(limits, key=lambda limit: limit[0])
    return max(0.0, share), by


def is_hidden_by_launches(setting: Setting, findings: Sequence[str]) -> bool:
    """Tell whether only launches, which hide what the setting saves of the device's work, name it."""
    return setting.knob == "matmul.fp32_precision" and list(findings) == ["launch-bound"]


def _of_loading(setting: Setting, diagnosis: Diagnosis, present: Present) -> list[tuple[float, str]]:
    """Return the bounds of a setting that can only make batches ready sooner; empty for any other setting.

    Without workers, the step's wait is all of the work that a worker would do; with workers, the wait for
    workers. The wait excludes batches that the process made beside the device's work: then the bound is
    higher than necessary.
    """
    now, num, shares = present.get("loader.num_workers"), setting.value, diagnosis.shares
    limits: list[tuple[float, str]] = []
    if setting.knob == "loader.num_workers":
        # With fewer workers, the step also has more cores.
        if not isinstance(now, int) or not isinstance(num, int) or num <= now:
            return []
        if isinstance(shares, Shares):
            saved = 1.0 - max(1.0 - shares.input, (float(now) if now else shares.input) / num)
            limits.append((min(1.0, max(0.0, saved) + RUNS_DIFFER), f"what {num} workers can make"))
    elif not knobs.get(setting.knob).only_loading:
        return []
    if not isinstance(diagnosis.upper_bounds, Unknown):
        step_s = {ceiling.part: ceiling.step_s for ceiling in diagnosis.upper_bounds}
        ratio = step_s["step"] / step_s["both"] if step_s.get("both") and step_s.get("step") else math.inf
        # The computation alone cannot take longer than the whole step: if it does, a disturbance lengthened
        # that run.
        if ratio <= 1 + RUNS_DIFFER:
            limits.insert(
                0, (min(1.0, 1.0 - ratio + RUNS_DIFFER), "a step that gets the same batch each time")
            )
    if isinstance(shares, Shares):
        limits.insert(0, (shares.input, "the wait for the loader"))
    return limits


def bound_log(candidate: Candidate) -> float:
    """Return the largest possible gain of a candidate, as the logarithm of a ratio; infinite without a
    bound."""
    if isinstance(candidate.bound, Unknown) or candidate.bound >= 1:
        return math.inf
    return -math.log1p(-max(0.0, candidate.bound))


def worth_trying(study: Study) -> list[Candidate]:
    """Return the candidates that may gain more than the margin or that the user asked for, in predicted
    order.

    The user's own candidates come first, then those that a finding names, then the rest. If several numbers
    of workers have the same bound, the first of them is the one that keeps up with the step that all other
    settings leave.
    """
    may_gain = [one for one in study.candidates if one.by_user or bound_log(one) > math.log1p(study.margin)]
    enough = _enough_workers(may_gain)
    return sorted(
        may_gain, key=lambda one: (not one.by_user, not one.why, -bound_log(one), one.setting != enough)
    )


def _enough_workers(candidates: Sequence[Candidate]) -> Setting | None:
    """Return the fewest workers that keep up with the step after all other settings save their bounds.

    The fewest workers with the best bound keep up with the step as it is. A loader too slow for the faster
    step would hide the gain of the other settings. None if fewer than two numbers of workers are candidates.
    """
    workers = [one for one in candidates if one.setting.knob == "loader.num_workers" and one.setting.value]
    most = max(map(bound_log, workers), default=0.0)
    counts = sorted(int(one.setting.value) for one in workers if bound_log(one) == most)
    if len(counts) < 2:
        return None
    others: dict[str, float] = {}
    for one in candidates:
        if not one.setting.knob.startswith("loader.") and math.isfinite(bound_log(one)):
            others[one.setting.knob] = max(others.get(one.setting.knob, 0.0), bound_log(one))
    needed = counts[0] * math.exp(math.fsum(others.values()))
    return Setting("loader.num_workers", next((num for num in counts if num >= needed), counts[-1]))
