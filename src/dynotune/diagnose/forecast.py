"""Forecast the step time with one change of the loader. docs/reference/diagnosis.md defines the
arithmetic."""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import dynotune
from dynotune import probe
from dynotune.schema.diagnosis import Forecast, UpperBound
from dynotune.schema.facts import Unknown
from dynotune.schema.loader import Loader, Loading, SamplePart
from dynotune.schema.observation import Observation
from dynotune.schema.run import RunSpec

TRIAL = Path(dynotune.__file__).parent / "agent" / "core" / "decoders.py"
TRIAL_TIMEOUT_S, MOST_TRIALS = 60.0, 8
HANDOVER_S = 0.0005
FEWEST_LOOKS = 20
IN_DOUBT = 0.02
"""Systematic error of a part's share of a sample's time, in addition to chance."""
NOTABLE = 0.01

Trial = Mapping[str, tuple[float, float]]
"""By decoder: seconds of a file in the median round and in the fastest round."""


def forecast_loader(
    run: RunSpec, observation: Observation, bounds: Sequence[UpperBound] | Unknown
) -> list[Forecast] | Unknown:
    """Return the predicted step time for each change of the loader that was isolated; decoders are tried for
    this."""
    if isinstance(bounds, Unknown):
        return bounds
    processes = [] if isinstance(observation.processes, Unknown) else observation.processes
    loader = next((one for process in processes[:1] for one in process.loaders), None)
    if loader is None:
        return Unknown("the program draws from no DataLoader of torch")
    cores = observation.facts.get("host.num_cores")
    trial = try_decoders(run, loader)
    return forecasts(loader, bounds, float(cores) if isinstance(cores, int | float) else None, trial)


def forecasts(
    loader: Loader, bounds: Sequence[UpperBound], cores: float | None, trial: Trial
) -> list[Forecast] | Unknown:
    loading, by_part = loader.loading, {row.part: row.step_s for row in bounds}
    if isinstance(loading, Unknown):
        return loading
    if len(by_part) < 3 or min(by_part.values()) <= 0:
        return Unknown("the loader was not isolated")
    steps = _Steps(loader.num_workers, by_part["loader"], by_part["step"], by_part["both"])
    return [*_workers(loader, loading, steps, cores), *_without_parts(loading, steps, trial)]


@dataclass(frozen=True)
class _Steps:
    """Step times now, without the loader, and with both, from which forecasts are computed."""

    workers: int
    loader_s: float
    step_s: float
    both_s: float

    def _together(self, loader_s: float, workers: int) -> float:
        return max(loader_s, self.step_s) if workers else loader_s + self.step_s

    def with_loader(
        self,
        change: str,
        loader_s: float,
        least_s: float,
        note: str,
        setting: str,
        workers: int | None = None,
    ) -> Forecast:
        """Return a forecast: `loader_s`, or the model if slower, plus fixed overhead, which the bound leaves
        out."""
        num = self.workers if workers is None else workers
        now_s = self._together(self.loader_s, self.workers)
        step_s = self._together(loader_s, num) + max(0.0, self.both_s - now_s)
        least_step_s = min(step_s, self._together(least_s, num) * min(1.0, self.both_s / now_s))
        times = {"loader_s": loader_s, "step_s": step_s, "least_step_s": least_step_s}
        return Forecast(change=change, setting=setting, note=note, **times)

    def less(self, change: str, share: float, most: float, note: str = "", setting: str = "") -> Forecast:
        """Return a forecast without `share` of the loader's time; its bound is without `most` of that
        time."""
        return self.with_loader(
            change, self.loader_s * (1 - share), self.loader_s * (1 - most), note, setting=setting
        )


def _workers(loader: Loader, loading: Loading, steps: _Steps, cores: float | None) -> Iterator[Forecast]:
    """Forecast more workers: each makes batches as fast as a worker does now, as long as there are cores for
    them."""
    if loader.splits_by_worker is False or not cores:
        return
    one_s, now = steps.loader_s * max(1, steps.workers), steps.workers
    computes = min(1.0, loading.cpu_s / loading.fetch_s) if loading.fetch_s else 1.0
    most = max(1, int(cores)) * (1 if computes > 0.5 else 4)
    wanted = {max(1, now // 2), max(2, 2 * now), math.ceil(one_s / steps.step_s), int(cores)}
    for num in sorted(num for num in wanted if 1 <= num <= most and num != now):
        loader_s = max(one_s / num, one_s * computes / cores) + (0.0 if now else HANDOVER_S)
        change, setting = f"{num} worker{'s' * (num > 1)}", f"loader.num_workers={num}"
        # Fewer workers compete less for cores and memory, so each may be faster than now, by an unknown
        # factor.
        least_s = one_s / num if num > now else min(steps.loader_s, one_s * computes / min(cores, now))
        yield steps.with_loader(change, loader_s, least_s, note="", setting=setting, workers=num)


def _without_parts(loading: Loading, steps: _Steps, trial: Trial) -> Iterator[Forecast]:
    read, most_read = _share(loading, lambda part: part.part == "read")
    if read >= NOTABLE:
        if loading.read_bytes and loading.storage_bytes is not None:
            stored = loading.storage_bytes / loading.read_bytes
            least, note = (
                most_read if stored >= NOTABLE else IN_DOUBT,
                f"now {stored:.0%} of it comes from storage",
            )
            yield steps.less("all that is read in the page cache", read * stored, least, note)
        yield steps.less("samples in memory, nothing read", read, most_read)
    resized, most = _share(loading, lambda part: part.part == "transform" and "resize" in part.what.lower())
    if resized >= NOTABLE:
        yield steps.less(
            "resizing on the GPU", resized, most, "the GPU gets larger pictures, and has to resize them"
        )
    now = next(
        (one.what for one in loading.parts if one.part == "decode" and one.what.lower() in trial), None
    )
    if now is None:
        return
    decoded, most = _share(loading, lambda part: part.part == "decode" and part.what == now)
    usual_now_s, _ = trial[now.lower()]
    is_setting = now == "PIL" and all(path.lower().endswith((".jpg", ".jpeg")) for path in loading.decoded)
    for name, (usual_s, fastest_s) in trial.items():
        if name != now.lower():
            spared, at_most = 1 - usual_s / usual_now_s, 1 - min(1.0, fastest_s / usual_now_s)
            note = (
                f"a file takes {usual_s * 1e3:.3g} ms, and {usual_now_s * 1e3:.3g} ms by {now}; pixels "
                "may differ"
            )
            setting = f"decode.backend={name}" if is_setting else ""
            yield steps.less(f"decoding by {name}", decoded * spared, most * at_most, note, setting)


def _share(loading: Loading, chosen: Callable[[SamplePart], bool]) -> tuple[float, float]:
    """Return the chosen parts' share of the time to make samples, and an upper bound of that share."""
    parts = [part for part in loading.parts if part.part != "pin"]
    num, total_s = sum(part.num for part in parts), sum(part.wall_s for part in parts)
    if num < FEWEST_LOOKS or not total_s:
        return 0.0, 1.0
    share = min(1.0, sum(part.wall_s for part in parts if chosen(part)) / total_s)
    return share, min(1.0, share + 2 * math.sqrt(share * (1 - share) / num) + IN_DOUBT)


def try_decoders(run: RunSpec, loader: Loader) -> Trial:
    """Time the installed decoders on some of the program's own files, in as many processes as the loader has
    workers.

    Returns:
        Times by decoder; empty if no file was noted or no decoder could be tried.
    """
    decoded = [] if isinstance(loader.loading, Unknown) else loader.loading.decoded
    files = [path for path in decoded if Path(path).is_file()]
    python = probe.interpreter(run.command, run.env, run.cwd)
    words, num = (
        [str(TRIAL), *dict.fromkeys(files)],
        max(1, min(loader.num_workers, MOST_TRIALS)) if files else 0,
    )
    with ThreadPoolExecutor(MOST_TRIALS) as pool:
        ends = [
            pool.submit(probe.run_python, python, words, run.cwd, run.env, TRIAL_TIMEOUT_S, "")
            for _ in range(num)
        ]
    answers = [found for end in ends if (found := _times(end.result()))]
    return {
        name: (
            statistics.median(answer[name][0] for answer in answers),
            min(answer[name][1] for answer in answers),
        )
        for name in (sorted(set.intersection(*map(set, answers))) if answers else ())
    }


def _times(ended: tuple[int, bytes, bytes] | Unknown) -> Trial:
    try:
        return {} if isinstance(ended, Unknown) else json.loads(ended[1])
    except ValueError:  # the process crashed, or a library printed something of its own
        return {}
