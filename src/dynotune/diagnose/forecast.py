"""Forecasts of the loader: what it and a step would take with other workers, other storage, another decoder.

Arithmetic, defined in docs/reference/diagnosis.md. The loader alone and a step without it were measured; the parts of a
sample's time are from samples, so that the bound takes as much more as chance may have hidden.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import dynotune
from dynotune.schema.diagnosis import UpperBound
from dynotune.schema.facts import Unknown
from dynotune.schema.observation import Forecast, Loader, Loading, SamplePart

TRIAL = Path(dynotune.__file__).parent / "agent" / "decoder_trial.py"
TRIAL_TIMEOUT_S = 60.0
HANDOVER_S = 0.0005
FEWEST_LOOKS = 20
MOST_TRIALS = 8
IN_DOUBT = 0.02
NOTABLE = 0.01
NOT_PICTURES = ("text", "tokenizing", "decompressing", "webdataset")

Trial = Mapping[str, tuple[float, float]]
"""By decoder: seconds of a file in the middle round, and in the fastest."""


def forecasts(
    loader: Loader, bounds: Sequence[UpperBound], cores: float | None, trial: Trial | None = None
) -> list[Forecast] | Unknown:
    """Return what a step would take with each change that the loader's facts tell of."""
    loading, by_part = loader.loading, {row.part: row.step_s for row in bounds}
    if isinstance(loading, Unknown):
        return loading
    if not {"loader", "step", "both"} <= set(by_part) or min(by_part.values()) <= 0:
        return Unknown("the loader was not isolated")
    made = _Made(loader, loading, by_part["loader"], by_part["step"], by_part["both"])
    return [*_workers(made, cores), *_without_parts(made), *_decoders(made, trial or {})]


class _Made:
    """How long batches and steps take now, and the step for another loader."""

    def __init__(self, loader: Loader, loading: Loading, loader_s: float, step_s: float, both_s: float) -> None:
        self.loader, self.loading, self.loader_s, self.step_s, self.both_s = loader, loading, loader_s, step_s, both_s
        self.parts = [part for part in loading.parts if part.part != "pin"]

    def _together(self, loader_s: float, workers: int) -> float:
        return max(loader_s, self.step_s) if workers else loader_s + self.step_s

    def forecast(
        self,
        change: str,
        loader_s: float,
        least_s: float,
        *,
        workers: int | None = None,
        setting: str = "",
        notes: Sequence[str] = (),
    ) -> Forecast:
        """What a step is longer by than loader and model together explain stays; the bound leaves it out."""
        num = self.loader.num_workers if workers is None else workers
        now_s = self._together(self.loader_s, self.loader.num_workers)
        step_s = self._together(loader_s, num) + max(0.0, self.both_s - now_s)
        least_step_s = self._together(least_s, num) * min(1.0, self.both_s / now_s)
        return Forecast(
            change=change, setting=setting, loader_s=loader_s, step_s=step_s, least_step_s=min(step_s, least_step_s),
            notes=list(notes),
        )  # fmt: skip

    def share(self, chosen: Callable[[SamplePart], bool]) -> tuple[float, float]:
        """The parts' share of the time that makes samples, and the most that it may be."""
        num, total = sum(part.num for part in self.parts), sum(part.share for part in self.parts)
        if num < FEWEST_LOOKS or not total:
            return 0.0, 1.0
        share = sum(part.share for part in self.parts if chosen(part)) / total
        return share, min(1.0, share + 2 * math.sqrt(share * (1 - share) / num) + IN_DOUBT)


def _workers(made: _Made, cores: float | None) -> list[Forecast]:
    """Each worker makes batches as fast as one does now, as far as there are cores for what they compute."""
    now, loading = made.loader.num_workers, made.loading
    if made.loader.splits_by_worker is False or cores is None:
        return []
    one_s = made.loader_s * max(1, now)
    computes = min(1.0, loading.cpu_s / loading.fetch_s) if loading.fetch_s else 1.0
    most = max(1, int(cores)) if computes > 0.5 else 4 * max(1, int(cores))
    wanted = {max(1, now // 2), max(2, 2 * now), math.ceil(one_s / made.step_s), int(cores)}
    rows = []
    for num in sorted(num for num in wanted if 1 <= num <= most and num != now):
        loader_s = max(one_s / num, one_s * computes / cores) + (0.0 if now else HANDOVER_S)
        setting = f"loader.num_workers={num}"
        rows.append(
            made.forecast(f"{num} worker{'s' * (num > 1)}", loader_s, one_s / num, workers=num, setting=setting)
        )
    return rows


def _without_parts(made: _Made) -> list[Forecast]:
    loading = made.loading
    read, most_read = made.share(lambda part: part.part == "read")
    resized, most_resized = made.share(lambda part: part.part == "transform" and "resize" in part.what.lower())
    rows = []
    if read >= NOTABLE:
        stored = None
        if loading.read_bytes and loading.storage_bytes is not None:
            stored = loading.storage_bytes / loading.read_bytes
            note = f"now {stored:.0%} of what is read comes from storage"
            least = most_read if stored >= NOTABLE else IN_DOUBT
            rows.append(_less(made, "all files in the page cache", read * stored, least, note))
        rows.append(_less(made, "samples in memory, nothing read", read, most_read))
    if resized >= NOTABLE:
        note = "the GPU gets larger pictures, and resizes them in the time of the step"
        rows.append(_less(made, "resizing on the GPU", resized, most_resized, note))
    return rows


def _less(made: _Made, change: str, share: float, most: float, *notes: str) -> Forecast:
    return made.forecast(change, made.loader_s * (1 - share), made.loader_s * (1 - most), notes=notes)


def _decoders(made: _Made, trial: Trial) -> list[Forecast]:
    """The time in the decoder of now becomes that of another, as both took for some of the program's own files."""
    now = _decoder_of_now(made.loading)
    share, most = made.share(lambda part: part.part == "decode" and part.what not in NOT_PICTURES)
    if now not in trial or share < NOTABLE:
        return []
    rows = []
    for name, (usual_s, fastest_s) in trial.items():
        if name != now:
            ratio, least = usual_s / trial[now][0], fastest_s / trial[now][0]
            note = (
                f"a file takes {usual_s * 1e3:.3g} ms, and {trial[now][0] * 1e3:.3g} ms with {now}; pixels may differ"
            )
            rows.append(_less(made, f"decoding by {name}", share * (1 - ratio), most * (1 - min(1.0, least)), note))
    return rows


def _decoder_of_now(loading: Loading) -> str:
    shares: dict[str, float] = {}
    for part in loading.parts:
        if part.part == "decode" and part.what not in NOT_PICTURES:
            shares[part.what] = shares.get(part.what, 0.0) + part.share
    return max(shares, key=lambda what: shares[what], default="")


def try_decoders(python: str, loader: Loader, env: Mapping[str, str]) -> Trial:
    """Time the installed decoders on some of the program's own files, in as many processes at once as it has workers.

    Returns:
        By decoder; empty where no file was noted, or nothing could be tried.
    """
    loading = loader.loading
    files = [] if isinstance(loading, Unknown) else [path for path in loading.decoded if Path(path).is_file()]
    if not files:
        return {}
    answers: list[Trial] = []
    command = [python, str(TRIAL), *dict.fromkeys(files)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    children = [
        subprocess.Popen(command, env=dict(env), text=True, **pipes)  # type: ignore[call-overload]
        for _ in range(max(1, min(loader.num_workers, MOST_TRIALS)))
    ]
    for child in children:
        try:
            answers.append(json.loads(child.communicate(timeout=TRIAL_TIMEOUT_S)[0]))
        except (subprocess.TimeoutExpired, ValueError):
            child.kill()
            child.communicate()
    names = set.intersection(*(set(answer) for answer in answers)) if answers else set()
    return {
        name: (statistics.median(one[name][0] for one in answers), min(one[name][1] for one in answers))
        for name in sorted(names)
    }
