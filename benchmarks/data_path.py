"""How well the data path is explained, forecast and made faster: parts, each a table of its own.

    python benchmarks/data_path.py PART... [--device cuda] [--gpus 1] [--lanes 1] [--budget 480]
        [--only TEXT] [--out FILE]

- attribution: 24 data sets of programs/read_samples.py; the part of a sample's time that `diagnose` finds
  largest, and its share, against the time with and without that part, by turns; a truth whose interval is
  wide judges nothing.
- forecast: what `diagnose --isolate-loader` says of other decoders and workers, against `compare`.
- decoders: a ResNet-50 on JPEG files of three sizes by 4, 8 and 16 workers; images/s as written and with each
    decoder.
- tune: on the same, what `tune --allow numerics` finds with decoders and without, run by turns.
- nvjpeg: `decode_on_device` against torchvision's own call for the whole batch, and what it takes from a
    step.
- cache: pictures drawn as they are and through a `SampleCache`, in memory and on disk; samples/s of each
    epoch.
- guides: a table read row by row against arrays, and sound resampled for each item against once: diagnosed,
    compared.
- padding: fine-tunes on lengths with 45% of padding: by length and packed, predicted and measured, and their
    losses.

Nothing that is in FILE already is run again; after the budget nothing more is begun. Forecasts and tunes are
kept one by one, so that what a budget cuts short goes on from there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab import result_file
from lab.provenance import RESULTS, without_places

PROGRAMS = Path(__file__).parent / "programs"
DEADLINE_S = 420
IN_A_TIE = 0.03
"""Parts whose true shares are this near may both be called the largest."""
WIDEST_TRUTH = 0.1
"""A share whose 95% interval is wider is not known, and judges nothing."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Lane:
    """Cores, and a GPU if there are several, that one measurement has to itself; "" hides all GPUs."""

    cores: tuple[int, ...]
    gpu: int | str | None

    def run(self, words: Sequence[str], folder: str) -> str:
        """Return what the command printed; RuntimeError with the end of what it said if it failed."""
        env = {**os.environ, **({} if self.gpu is None else {"CUDA_VISIBLE_DEVICES": str(self.gpu)})}
        pinned = ["taskset", "-c", ",".join(map(str, self.cores)), *words]
        ran = subprocess.run(
            pinned, env=env, cwd=folder, capture_output=True, timeout=DEADLINE_S, check=False
        )
        if ran.returncode != 0:
            raise RuntimeError(without_places((ran.stderr or ran.stdout).decode(errors="replace")[-600:]))
        return ran.stdout.decode()

    def dynotune(self, command: str, options: Sequence[str], program: Sequence[str]) -> Row:
        """Return the JSON of one of the tool's commands, with `run_dir`'s observation where it left one."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "out.json")
            ours = [sys.executable, "-m", "dynotune", command, *options, "--no-lock", "--run-dir", folder]
            self.run([*ours, "--json", str(out), "--", *program], folder)
            found: Row = json.loads(out.read_text())
            for observation in sorted(Path(folder).glob("*/observation.json"))[:1]:
                found["observation"] = json.loads(observation.read_text())
            return found

    def program(self, words: Sequence[str], settings: Sequence[str] = ()) -> Row:
        """Return the line of JSON that a program of ours prints last, as written or with settings."""
        ours = [sys.executable, "-m", "dynotune", "run", *settings, "--"] if settings else []
        with tempfile.TemporaryDirectory() as folder:
            return dict(json.loads(self.run([*ours, *words], folder).strip().splitlines()[-1]))


def script(name: str, *words: object) -> list[str]:
    return [sys.executable, str(PROGRAMS / name), *map(str, words)]


Job = tuple[str, Callable[[Lane], Row]]


def remembered(given: argparse.Namespace, key: str, make: Callable[[], Row]) -> Row:
    """Return a part of a job, made once, whatever ends the job; RuntimeError if there is no time to begin
    it."""
    done = result_file.read(given.out).get("begun", {}).get(key)
    if done is None:
        if time.monotonic() > given.until_s:
            raise RuntimeError("the budget is spent; run it again to go on")
        done = make()
        with result_file.opened(given.out) as result:
            result.setdefault("begun", {})[key] = done
    return dict(done)


# Attribution


def attribution(_: argparse.Namespace) -> Iterator[Job]:
    sys.path.insert(0, str(PROGRAMS))
    for name in importlib.import_module("read_samples").DATA_SETS:
        yield name, lambda lane, name=name: attributed(name, lane)


def attributed(name: str, lane: Lane) -> Row:
    program = script("read_samples.py", name)
    true = json.loads(lane.run([*program, "--truth"], "/"))
    diagnosis = lane.dynotune("diagnose", [], program)
    part_at = Parts(name)
    wall_s: dict[str, float] = {}
    num = 0
    loading = diagnosis["observation"]["processes"][0]["loaders"][0]["loading"]
    for part in loading["parts"]:
        if part["part"] not in ("pin", "move"):  # the truth is of making batches, in a worker's way
            where = part_at(part["function"], part["text"]) or f"({part['part']})"
            wall_s[where] = wall_s.get(where, 0.0) + part["wall_s"]
            num += part["num"]
    shares = {part: seconds / sum(wall_s.values()) for part, seconds in wall_s.items()}
    named = [
        {"id": finding["id"], "share": finding["share"], "part": part_at(finding["where"]["function"], "")}
        for finding in diagnosis["findings"]
        if isinstance(finding["share"], float) and finding["kind"] == "speed"
    ]
    return {
        "true": true["parts"],
        "sample_s": true["sample_s"],
        "seen": shares,
        "num_looks": num,
        "findings": named,
    }


class Parts:
    """Tells the part that a line of programs/read_samples.py belongs to; "" for none."""

    def __init__(self, name: str) -> None:
        import inspect

        module = importlib.import_module("read_samples")
        kind = module.DATA_SETS[name]
        self._lines = Path(module.__file__).read_text().splitlines()
        self._ranges: list[tuple[range, str]] = []
        self._calls: list[tuple[str, str]] = []
        for part, target in kind.parts.items():
            owner: Any = kind if "." not in target.partition(":")[0] else module
            if ":" in target:
                self._calls.append((target.rpartition(":")[2] + "(", part))
                continue
            for attribute in target.split("."):
                owner = getattr(owner, attribute)
            source, begin = inspect.getsourcelines(owner)
            self._ranges.append((range(begin, begin + len(source)), part))

    def __call__(self, function: str, text: str) -> str:
        place = function.partition("(")
        if not place[0].endswith("read_samples.py"):
            return ""
        line = int(place[2].partition(")")[0])
        text = text or self._lines[line - 1]
        inside = next((part for lines, part in self._ranges if line in lines), "")
        return inside or next((part for call, part in self._calls if call in text), "")


def attribution_table(rows: dict[str, Row]) -> Iterator[str]:
    named = found = near = known = 0
    for name, row in rows.items():
        true, seen = {part: one["share"] for part, one in row["true"].items()}, row["seen"]
        truth = max(true, key=lambda part: true[part])
        least, most = row["true"][truth]["interval"]
        if most - least > WIDEST_TRUTH:
            yield f"{name:26} {truth:10} {least:.0%} to {most:.0%}: not known"
            continue
        best = max(seen, key=lambda part: seen[part])
        first = next((each["part"] for each in row["findings"] if each["part"]), "")
        is_named = true.get(best, 0.0) >= true[truth] - IN_A_TIE
        is_found = true.get(first, 0.0) >= true[truth] - IN_A_TIE
        is_near = is_named and abs(seen[best] - true[best]) <= 0.1
        known, named, found, near = known + 1, named + is_named, found + is_found, near + is_near
        total, inside = sum(true.values()), row["true"][best]["inside"] if best in true else 0.0
        notes = [f"{inside:.0%} inside of it", f"first finding: {first or 'none of it'}"]
        notes += ["OFF"] * (not is_found) + [f"true shares add up to {total:.0%}"] * (total > 1.1)
        seen_best = f"seen {best:10} {seen[best]:4.0%}  {'' if is_near else 'OFF':3}"
        yield f"{name:26} {truth:10} {true[truth]:4.0%}  {seen_best}  {'; '.join(notes)}"
    yield (
        f"truth known of {known} of {len(rows)}: largest part right in {named}, its share within 10% in "
        f"{near};"
    )
    yield f"first finding in {found}"


# Forecasts


def forecast(given: argparse.Namespace) -> Iterator[Job]:
    workers = (1, 2) if given.device == "cpu" else (2, 4, 8)
    for size in SIZES:
        for num in workers:
            yield f"{size} {num} workers", lambda lane, size=size, num=num: forecasts(given, size, num, lane)


def forecasts(given: argparse.Namespace, size: str, workers: int, lane: Lane) -> Row:
    program = pictures(given, size, workers, seconds=600)
    key = f"forecast {size} {workers} workers:"

    def diagnosed() -> Row:
        diagnosis = lane.dynotune("diagnose", ["--isolate-loader"], program)
        if not isinstance(diagnosis["forecasts"], list):
            raise RuntimeError(str(diagnosis["forecasts"]))
        both_s = next(bound["step_s"] for bound in diagnosis["upper_bounds"] if bound["part"] == "both")
        return {"told": [{**one, "both_s": both_s} for one in diagnosis["forecasts"] if one["setting"]]}

    def compared(setting: str) -> Row:
        options = [setting, "--pairs", str(given.pairs), "--budget", given.compare]
        answer = lane.dynotune("compare", options, program)
        return {name: answer[name] for name in ("verdict", "speedup", "ci")}

    told = sorted(
        remembered(given, key, diagnosed)["told"], key=lambda one: not one["setting"].startswith("decode")
    )
    told = told[: given.most]
    answers = [
        remembered(given, f"{key} {one['setting']}", lambda one=one: compared(one["setting"])) for one in told
    ]
    return {"forecasts": [{**one, **answer} for one, answer in zip(told, answers, strict=True)]}


def forecast_table(rows: dict[str, Row]) -> Iterator[str]:
    near = broken = num = 0
    for key, row in rows.items():
        for one in row["forecasts"]:
            if one["speedup"] is None:
                yield f"{key:20} {one['setting']:28} undecided"
                continue
            said, most = one["both_s"] / one["step_s"], one["both_s"] / one["least_step_s"]
            off = said / one["speedup"] - 1
            is_broken = bool(one["ci"]) and one["ci"][0] > most
            num, near, broken = num + 1, near + (abs(off) <= 0.15), broken + is_broken
            note = "  BOUND BROKEN" if is_broken else ""
            yield (
                f"{key:20} {one['setting']:28} forecast {said:.2f}, at most {most:.2f}; "
                f"{one['speedup']:.2f}{note}"
            )
    yield f"{near} of {num} within 15%; bound broken in {broken}"


# Pictures

SIZES = {"small": (375, 500, 95), "medium": (600, 800, 93), "large": (960, 1280, 90)}
DECODERS = ("opencv", "torchvision", "simplejpeg")


def pictures(given: argparse.Namespace, size: str, workers: int, seconds: float) -> list[str]:
    height, width, quality = SIZES[size]
    words = ("--size", f"{height}x{width}", "--quality", quality, "--workers", workers, "--seconds", seconds)
    return script("train_pictures.py", "--device", given.device, *words)


def decoders(given: argparse.Namespace) -> Iterator[Job]:
    workers = (2,) if given.device == "cpu" else (8, 4, 16)
    for num in workers:
        for size in SIZES:
            yield f"{size} {num} workers", lambda lane, size=size, num=num: by_decoder(given, size, num, lane)


def by_decoder(given: argparse.Namespace, size: str, workers: int, lane: Lane) -> Row:
    program = pictures(given, size, workers, seconds=6)
    row: Row = {"as written": lane.program(program)}
    for name in DECODERS:
        try:
            row[name] = lane.program(program, ["--set", f"decode.backend={name}"])
        except RuntimeError as error:
            row[name] = {"failed": str(error)[-200:]}
    row["as written again"] = lane.program(program)
    return row


def decoders_table(rows: dict[str, Row]) -> Iterator[str]:
    for key, row in rows.items():
        speeds = {
            name: one["images_per_s"]
            for name, one in row.items()
            if isinstance(one, dict) and "failed" not in one
        }
        yield f"{key:20} images/s: {', '.join(f'{name} {value:.0f}' for name, value in speeds.items())}"


def tune(given: argparse.Namespace) -> Iterator[Job]:
    pairs = [("medium", 8), ("large", 8), ("small", 8), ("large", 4), ("medium", 16), ("small", 4)]
    for size, workers in pairs if given.device == "cuda" else [("medium", 1), ("large", 1), ("small", 1)]:
        yield f"{size} {workers} workers", lambda lane, at=(size, workers): tuned(given, *at, lane)


def tuned(given: argparse.Namespace, size: str, workers: int, lane: Lane) -> Row:
    program, short = (pictures(given, size, workers, seconds) for seconds in (600, 6))
    row: Row = {}
    with tempfile.TemporaryDirectory() as folder:

        def found(exclude: Sequence[str]) -> Row:
            recipe = Path(folder, "found.toml")
            recipe.unlink(missing_ok=True)
            options = ["--allow", "numerics", "--budget", given.tune, "--output", str(recipe), *exclude]
            begin = time.monotonic()
            study = lane.dynotune("tune", options, program)
            last = study["confirmed"] or next(reversed(study["within"]), {})
            told = {
                name: last.get(name)
                for name in ("candidate_settings", "verdict", "speedup", "ci", "num_pairs")
            }
            text = recipe.read_text() if recipe.is_file() else ""
            return {"took_s": time.monotonic() - begin, "recipe": text, "last": told}

        arms: dict[str, list[str]] = {"as written": []}
        for name, exclude in {"with decoders": [], "without": ["--exclude", "decode.backend"]}.items():
            if given.half not in (None, name):
                continue
            key = f"tune {size} {workers} workers: {name}"
            row[name] = remembered(given, key, lambda exclude=exclude: found(exclude))
            if row[name]["recipe"]:
                recipe = Path(folder, f"{name.replace(' ', '-')}.toml")
                recipe.write_text(row[name]["recipe"])
                arms[name] = ["--recipe", str(recipe)]
        if given.half:
            raise RuntimeError("this half is kept; run it again without --half to go on")
        speeds: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(min(2, given.pairs)):
            for name, options in arms.items():
                speeds[name].append(lane.program(short, options)["images_per_s"])
        row["images_per_s"] = speeds
    return row


def tune_table(rows: dict[str, Row]) -> Iterator[str]:
    for key, row in rows.items():
        speeds = {name: statistics.mean(values) for name, values in row["images_per_s"].items()}
        base = speeds.get("without", speeds["as written"])
        told = ", ".join(f"{name} {value:.0f}" for name, value in speeds.items())
        yield f"{key:20} images/s: {told}; decoders give {speeds.get('with decoders', base) / base:.2f} times"


# nvJPEG


def nvjpeg(given: argparse.Namespace) -> Iterator[Job]:
    for size, (height, width, quality) in SIZES.items():
        words = ("--device", given.device, "--size", f"{height}x{width}", "--quality", quality)
        yield size, lambda lane, words=words: lane.program(script("decode_pictures.py", *words))


def nvjpeg_table(rows: dict[str, Row]) -> Iterator[str]:
    for key, row in rows.items():
        for size, one in row["batches"].items():
            ours, own = one["ours"], one["own"]
            yield (
                f"{key:8} {size:>4} files: {ours:.0f} images/s, torchvision's call {own:.0f}: "
                f"{ours / own:.0%}"
            )
        took_ms = {name: seconds * 1e3 for name, seconds in row["step"].items() if name.endswith("_s")}
        told = ", ".join(f"{name} {ms:.1f} ms" for name, ms in took_ms.items())
        yield f"{key:8} a step alone, one with decoding beside it, and decoding alone: {told}"


# Padding


def padding(given: argparse.Namespace) -> Iterator[Job]:
    for model in ("bert", "gpt"):
        yield f"{model} speed", lambda lane, model=model: padding_speed(given, model, lane)
        yield f"{model} by-length", lambda lane, model=model: padding_by_length(given, model, lane)
        yield f"{model} check_packing", lambda lane, model=model: packing_checked(given, model, lane)
        for how in ("written", "packed"):
            yield (
                f"{model} losses {how}",
                lambda lane, model=model, how=how: padding_losses(given, model, how, lane),
            )


def texts(given: argparse.Namespace, model: str, *words: object) -> list[str]:
    return script("train_texts.py", model, "--device", given.device, *words)


def padding_speed(given: argparse.Namespace, model: str, lane: Lane) -> Row:
    diagnosis = lane.dynotune("diagnose", [], texts(given, model, "--seconds", 600))
    finding = next((one for one in diagnosis["findings"] if one["id"] == "padding-waste"), None)
    if finding is None:
        raise RuntimeError("no padding-waste found")
    seen = diagnosis["observation"]["processes"][0]["loaders"][0]["padding"]
    # The finding bounds what goes with all padding: `spare` of a step is in proportion to the tokens
    # computed.
    spare = finding["share"] / seen["share"]
    left = {"by-length": (1 - seen["share"]) / (1 - seen["sorted_share"]), "packed": 1 - seen["share"]}
    predicted = {name: 1 / (1 - spare * (1 - share)) for name, share in left.items()}
    # In the first two turns the allocator still learns the lengths, and steps are slower.
    turns = lane.program(texts(given, model, "--turns", 5, "--seconds", 3))["samples_per_s"]
    speeds = {how: rates[2:] for how, rates in turns.items()}
    shown = {key: seen[key] for key in ("share", "longest_share", "sorted_share")}
    return {"padding": shown, "predicted": predicted, "samples_per_s": speeds}


def padding_by_length(given: argparse.Namespace, model: str, lane: Lane) -> Row:
    """Compare the setting, on the program as it is written."""
    options = ["loader.batches=by-length", "--pairs", str(given.pairs), "--budget", given.compare]
    compared = lane.dynotune("compare", options, texts(given, model, "--seconds", 600))
    return {"compared": {key: compared[key] for key in ("verdict", "speedup", "ci")}}


def packing_checked(given: argparse.Namespace, model: str, lane: Lane) -> Row:
    answers = {
        how: lane.program(texts(given, model, "--check", how))["answer"] for how in ("mixing", "varlen")
    }
    return {"check_packing": answers}


def padding_losses(given: argparse.Namespace, model: str, how: str, lane: Lane) -> Row:
    words = ("--steps", 200 if given.device == "cuda" else 30, "--how", how, "--seeds", 3)
    return {"losses": lane.program(texts(given, model, *words))["last_losses"]}


def padding_table(rows: dict[str, Row]) -> Iterator[str]:
    losses: dict[str, dict[str, list[float]]] = {}
    for key, row in rows.items():
        if "losses" in row:
            model, _, how = key.split()
            losses.setdefault(model, {})[how] = row["losses"]
        elif "compared" in row:
            yield f"{key:12} compare: {row['compared']['verdict']}, {row['compared']['speedup']}"
        elif "check_packing" in row:
            yield f"{key:12} {row['check_packing']}"
        elif "predicted" in row:
            speeds = {name: statistics.median(values) for name, values in row["samples_per_s"].items()}
            for name, value in speeds.items():
                said = row["predicted"].get("by-length" if name == "sampler" else name)
                ratio = value / speeds["written"]
                told = "" if said is None else f", predicted {said:.2f} ({said / ratio - 1:+.0%})"
                yield f"{key:12} {name:10} {value:8.0f} samples/s, {ratio:.2f} times{told}"
            yield f"{key:12} padding {row['padding']['share']:.0%}"
    for model, by_how in losses.items():
        if len(by_how) == 2:
            means = {how: statistics.mean(each) for how, each in by_how.items()}
            noise = max(statistics.stdev(each) for each in by_how.values())
            agree = "agree" if abs(means["packed"] - means["written"]) <= 2 * noise else "DIFFER"
            yield (
                f"{model} padded {means['written']:.4f}, packed {means['packed']:.4f}, noise "
                f"{noise:.4f}: {agree}"
            )


# Samples that are kept


def cache(given: argparse.Namespace) -> Iterator[Job]:
    for size in SIZES:
        yield f"{size} 2 workers", lambda lane, size=size: cached(given, size, lane)


def cached(given: argparse.Namespace, size: str, lane: Lane) -> Row:
    height, width, quality = SIZES[size]
    words = ("--size", f"{height}x{width}", "--quality", quality, "--workers", 2)
    arms = {"as written": None, "in memory": "/dev/shm", "on disk": tempfile.gettempdir()}
    epochs: dict[str, list[list[float]]] = {name: [] for name in arms}
    for _ in range(given.pairs):
        for name, root in arms.items():
            with tempfile.TemporaryDirectory(dir=root) as folder:
                where = ("--folder", Path(folder, "samples")) if root else ()
                epochs[name].append(
                    lane.program(script("cached_pictures.py", *words, *where))["samples_per_s"]
                )
    return {"samples_per_s": epochs}


def cache_table(rows: dict[str, Row]) -> Iterator[str]:
    for key, row in rows.items():
        for name, runs in row["samples_per_s"].items():
            told = ", ".join(
                f"{statistics.median(epoch):.0f} ({min(epoch):.0f} to {max(epoch):.0f})"
                for epoch in zip(*runs, strict=True)
            )
            yield f"{key:20} {name:10} samples/s of each epoch: {told}"


# Examples of the guides


def guides(given: argparse.Namespace) -> Iterator[Job]:
    for kind, hows in {"table": ("rows", "arrays"), "sound": ("each", "once")}.items():
        yield kind, lambda lane, kind=kind, hows=hows: example(given, kind, *hows, lane)


def example(given: argparse.Namespace, kind: str, before: str, after: str, lane: Lane) -> Row:
    diagnosis = lane.dynotune("diagnose", [], script("read_once.py", kind, before))
    findings = [
        {key: finding[key] for key in ("id", "claim", "share")}
        for finding in diagnosis["findings"]
        if finding["kind"] == "speed"
    ]
    options = [f"arg.how={after}", "--baseline", f"arg.how={before}", "--pairs", str(given.pairs)]
    options += ["--budget", given.compare, *given.steps]
    compared = lane.dynotune("compare", options, script("read_once.py", kind, "{how}"))
    return {"findings": findings[:2], **{key: compared[key] for key in ("verdict", "speedup", "ci")}}


def guides_table(rows: dict[str, Row]) -> Iterator[str]:
    for key, row in rows.items():
        yield (
            f"{key:8} {row['verdict']}, {row['speedup']} {row['ci']}; "
            f"{[one['claim'] for one in row['findings']]}"
        )


# All parts

PARTS: dict[
    str, tuple[Callable[[argparse.Namespace], Iterator[Job]], Callable[[dict[str, Row]], Iterator[str]]]
] = {
    "attribution": (attribution, attribution_table),
    "forecast": (forecast, forecast_table),
    "nvjpeg": (nvjpeg, nvjpeg_table),
    "padding": (padding, padding_table),
    "cache": (cache, cache_table),
    "guides": (guides, guides_table),
    "decoders": (decoders, decoders_table),
    "tune": (tune, tune_table),
}


def run_jobs(given: argparse.Namespace, out: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    lanes = given.gpus if given.device == "cuda" else given.lanes
    size = max(1, len(cpus) // lanes)
    free = queue.SimpleQueue[Lane]()
    for lane in range(lanes):
        gpu = "" if given.device == "cpu" else lane if lanes > 1 else None
        free.put(Lane(tuple(cpus[lane * size : (lane + 1) * size]), gpu))
    given.until_s, lock = time.monotonic() + given.budget, threading.Lock()

    def do(part: str, key: str, job: Callable[[Lane], Row]) -> None:
        done = result_file.read(out).get("parts", {}).get(part, {}).get(key, {})
        if time.monotonic() > given.until_s or (done and "failed" not in done) or given.only not in key:
            return
        lane = free.get()
        begin = time.monotonic()
        try:
            row = job(lane)
        except (RuntimeError, subprocess.TimeoutExpired, KeyError, ValueError) as error:
            row = {"failed": without_places(f"{type(error).__name__}: {error}"[-600:])}
        finally:
            free.put(lane)
        row["job_s"] = round(time.monotonic() - begin, 1)
        with lock, result_file.opened(out) as result:
            result.setdefault("parts", {}).setdefault(part, {})[key] = row
            if "failed" not in row:
                begun = result.pop("begun", {})
                rest = {name: half for name, half in begun.items() if not name.startswith(f"{part} {key}:")}
                result.update({"begun": rest} if rest else {})
        print(f"[{part}] {key}: {row.get('failed', 'done')[-200:]} ({row['job_s']:.0f} s)", flush=True)

    with ThreadPoolExecutor(lanes) as pool:
        jobs = [(part, key, job) for part in given.parts for key, job in PARTS[part][0](given)]
        list(pool.map(lambda job: do(*job), jobs))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpus", type=int, default=1, help="lanes side by side, each with a GPU of its own")
    parser.add_argument(
        "--lanes", type=int, default=1, help="of the CPU, side by side, each with cores of its own"
    )
    parser.add_argument("--budget", type=float, default=float("inf"), metavar="S")
    parser.add_argument("--only", default="", metavar="TEXT", help="keys that hold this")
    parser.add_argument("--pairs", type=int, default=3, help="of each comparison of a forecast")
    parser.add_argument("--most", type=int, default=4, help="forecasts of one diagnosis that are compared")
    parser.add_argument(
        "--steps",
        type=lambda num: ["--steps", num, "--warmup", "10"],
        default=[],
        help="of each run of the guides' examples",
    )
    parser.add_argument("--compare", default="60s", help="budget of one comparison")
    parser.add_argument("--tune", default="100s", help="budget of one tune")
    parser.add_argument(
        "--half", choices=("with decoders", "without"), help="make this tune alone, and keep it"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    out = given.out = given.out or RESULTS / f"data_path_{given.device}.json"
    run_jobs(given, out)
    found = result_file.read(out).get("parts", {})
    for part in given.parts:
        rows = found.get(part, {})
        print(f"\n{part}")
        for key, row in rows.items():
            if "failed" in row:
                print(f"{key:20} FAILED {row['failed'].strip().splitlines()[-1][-100:]}")
        for line in PARTS[part][1]({key: row for key, row in rows.items() if "failed" not in row}):
            print(line)


if __name__ == "__main__":
    main()
