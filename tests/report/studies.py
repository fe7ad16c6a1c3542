"""Studies as a tune leaves them: a rich one, and those in which something is missing."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from dynotune.schema.attribution import Shares
from dynotune.schema.comparison import ArmSummary, Comparison, Pair
from dynotune.schema.diagnosis import Diagnosis, Finding, NotKnown
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Effect
from dynotune.schema.recipe import SCHEMA, Header, Recipe
from dynotune.schema.run import Readback
from dynotune.schema.setting import Setting
from dynotune.schema.study import (
    Attempt,
    BaseRecipe,
    BreakEven,
    Candidate,
    CandidateOutcome,
    Ended,
    Estimate,
    Guarded,
    NotOffered,
    Phase,
    Study,
    Trial,
)
from dynotune.schema.timing import Timing
from dynotune.schema.trace_summary import Place

from ..fakes import of_run

COMMAND = ["python", "train.py", "--data", "my photographs", "--epochs", "90", "--model", "resnet50"]
BASELINE_S = 1.312e-3  # a sample
BATCH_SIZE = 64
FACTS: Facts = {
    "gpu.count": 1,
    "gpu.name": "NVIDIA H200",
    "gpu.driver": "580.159.04",
    "gpu.compute_capability": "9.0",
    "gpu.memory_bytes": 150754820096,
    "gpu.power_limit_w": 700.0,
    "gpu.clock_reasons": ["gpu-idle"],
    "gpu.persistence": Unknown("NVML does not say: not permitted."),
    "host.cpu": "Intel(R) Xeon(R) Platinum 8480C",
    "host.num_cores": 16,
    "host.memory_bytes": 137438953472,
    "host.shm_bytes": 68719476736,
    "host.container": "docker",
    "host.kernel": "6.18.44",
    "python.version": "3.12.3",
    "torch.version": "2.13.0",
    "torch.cuda": "13.0",
    "torch.cudnn": "9.17.0",
    "env.OMP_NUM_THREADS": None,
}
EFFECTS: dict[str, Effect] = {
    "loader.num_workers": "sampling",
    "loader.persistent_workers": "sampling",
    "cudnn.benchmark": "numerics",
    "precision.autocast": "numerics",
    "matmul.fp32_precision": "numerics",
    "layout.channels_last": "numerics",
    "optimizer.fused": "numerics",
    "compile.mode": "numerics",
    "host.num_threads": "numerics",
    "transfer.non_blocking": "semantics",
}

Raw = tuple[str, bool | int | float | str]
# Setting, true speed-up alone, bound, what bounds it, group, in one process.
TRIED: list[tuple[Raw, float, float | None, str, str, bool]] = [
    (("loader.num_workers", 2), 1.29, 0.61, "waits for input: 61% of a step", "loader", False),
    (("loader.num_workers", 4), 1.56, 0.61, "waits for input: 61% of a step", "loader", False),
    (("loader.num_workers", 8), 1.92, 0.61, "waits for input: 61% of a step", "loader", False),
    (("loader.num_workers", 16), 1.84, 0.61, "waits for input: 61% of a step", "loader", False),
    (("loader.prefetch_factor", 4), 1.002, 0.61, "waits for input: 61% of a step", "loader", False),
    (("loader.persistent_workers", True), 0.998, 0.02, "beginning an epoch: 2% of a step", "loader", False),
    (
        ("loader.pin_memory", True),
        1.021,
        0.041,
        "copies from pageable memory: 4.1% of a step",
        "loader",
        False,
    ),
    (("host.num_threads", 4), 1.18, 0.61, "waits for input: 61% of a step", "loader", False),
    (
        ("precision.autocast", "bf16"),
        1.048,
        0.27,
        "the device's matrix products: 27% of a step",
        "precision",
        True,
    ),
    (
        ("matmul.fp32_precision", "high"),
        1.001,
        0.27,
        "the device's matrix products: 27% of a step",
        "precision",
        True,
    ),
    (("layout.channels_last", True), 1.003, 0.12, "layout conversions: 12% of a step", "precision", False),
    (("cudnn.benchmark", True), 1.006, None, "", "", True),
    (("optimizer.fused", True), 1.011, 0.018, "the optimizer's kernels: 1.8% of a step", "", False),
    (("alloc.expandable_segments", True), 0.951, None, "", "", False),
    (("env.CUDA_MODULE_LOADING", "EAGER"), 0.999, None, "", "", False),
]
BROKEN: list[tuple[Raw, Ended, str]] = [
    (("compile.mode", "max-autotune-no-cudagraphs"), "timeout", "It ran for longer than 240 s."),
    (("compile.mode", "reduce-overhead"), "out-of-memory", "torch.OutOfMemoryError: CUDA out of memory."),
    (("precision.autocast", "fp16"), "wrong-results", "the losses differ by 31%, more than the 5% allowed"),
    (
        ("loader.multiprocessing_context", "spawn"),
        "failed",
        "AttributeError: Can't pickle local object 'main.<locals>.f'",
    ),
]
WHOLE: list[Raw] = [("host.num_threads", 4), ("loader.num_workers", 8), ("precision.autocast", "bf16")]
WHOLE_SPEEDUP = 2.31


def key(raws: Sequence[Raw]) -> str:
    return " ".join(str(Setting(*raw)) for raw in sorted(raws))


def timing(step_s: float) -> Timing:
    return Timing(
        num_steps=200,
        window_s=200 * step_s,
        step_s=step_s,
        median_step_s=0.97 * step_s,
        p99_step_s=1.9 * step_s,
        longest_step_s=3.1 * step_s,
        wait_s=0.6 * step_s,
        samples_per_s=BATCH_SIZE / step_s,
    )


def diagnosis(**changes: Any) -> Diagnosis:
    fields: dict[str, Any] = {
        "command": COMMAND,
        "verdict": "A step takes 84 ms; 61% of it the device waits for the data loader (train.py:31).",
        "bottleneck": "input",
        "shares": Shares(input=0.608, transfer=0.041, host=0.05, device=0.271, communication=0.0, other=0.03),
        "findings": [
            Finding(
                id="num-workers-zero",
                severity="high",
                claim="Batches are made in the main process.",
                share=0.61,
                where=Place("/home/me/train.py(31): main"),
                candidates=[Setting("loader.num_workers", 8)],
            )
        ],
        "unknown": [NotKnown("pcie-narrow", "gpu.pcie_width", "NVML does not say")],
        "steps": timing(BASELINE_S * BATCH_SIZE),
        "busy_share": 0.3,
        "facts": FACTS,
    }
    return Diagnosis(**(fields | changes))


def after() -> Diagnosis:
    return diagnosis(
        verdict="A step takes 36 ms; the device works for 57% of it.",
        bottleneck="device",
        shares=Shares(input=0.17, transfer=0.07, host=0.12, device=0.57, communication=0.0, other=0.07),
        steps=timing(BASELINE_S * BATCH_SIZE / WHOLE_SPEEDUP),
        findings=[],
        busy_share=0.63,
    )


class Clockwork:
    """Makes trials one after another, with noise that is the same every time."""

    def __init__(self, noise: float = 0.011) -> None:
        self.random = random.Random(7)
        self.noise = noise
        self.now_s = 95.0
        self.trials: list[Trial] = []

    def run(self, arm: str, phase: Phase, block: int, speedup: float = 1.0, **changes: Any) -> float:
        value = BASELINE_S / speedup * math.exp(self.random.gauss(0, self.noise))
        wall_s = self.random.uniform(9, 14) + 4 / speedup
        fields: dict[str, Any] = {
            "arm": arm,
            "phase": phase,
            "block": block,
            "ended": "measured",
            "value": value,
            "began_s": round(self.now_s, 3),
            "wall_s": round(wall_s, 3),
            "time_to_first_step_s": 6.2 + 1.1 * (speedup > 1.5),
            "run": f"runs/{len(self.trials):04d}",
        }
        self.trials.append(Trial(**(fields | changes)))
        self.now_s += wall_s + 0.4
        return value


def estimate(
    arm: str, against: str, phase: Phase, speedup: float, half: float, num_blocks: int, **more: Any
) -> Estimate:
    ci = (speedup * math.exp(-half), speedup * math.exp(half))
    return Estimate(
        arm=arm, against=against, phase=phase, speedup=speedup, ci=ci, num_blocks=num_blocks, **more
    )


def _candidates() -> Iterator[Candidate]:
    for raw, _, bound, bound_by, _, in_process in TRIED:
        yield Candidate(
            setting=Setting(*raw),
            effect=EFFECTS.get(raw[0], "exact"),
            why=["num-workers-zero"] if "loader" in raw[0] else [],
            bound=Unknown("nothing bounds it") if bound is None else bound,
            bound_by=bound_by,
            in_process=in_process,
        )
    for raw, _, _ in BROKEN:
        yield Candidate(
            setting=Setting(*raw), effect=EFFECTS.get(raw[0], "semantics"), bound=0.27, bound_by="27%"
        )
    yield Candidate(setting=Setting("alloc.backend", "cudaMallocAsync"), effect="exact", bound=0.006)


def _searched(clock: Clockwork) -> list[Estimate]:
    """Pilots, rounds of blocks, and the estimates that they gave."""
    found = [
        estimate(key([raw]), "", "switch", speedup * 1.002, 0.012, 24)
        for raw, speedup, _, _, _, in_process in TRIED
        if in_process
    ]
    clock.run("", "pilot", 0)
    for raw, speedup, *_ in TRIED:
        clock.run(key([raw]), "pilot", 0, speedup)
    for raw, ended, detail in BROKEN:
        clock.run(key([raw]), "pilot", 0, ended=ended, value=None, detail=detail)
    for block in range(1, 7):
        alive = [
            entry for at, entry in enumerate(TRIED) if block <= 3 or entry[1] > 1.01 or at % 5 == block % 5
        ]
        clock.run("", "prune", block)
        for raw, speedup, *_ in alive:
            void = "another program used 31% of the GPU" if block == 2 and raw[1] == 16 else ""
            clock.run(key([raw]), "prune", block, speedup, void=void)
    for raw, speedup, *_ in TRIED:
        noisy = speedup * math.exp(clock.random.gauss(0, 0.004))
        found.append(estimate(key([raw]), "", "prune", noisy, 0.011 if speedup > 1.01 else 0.008, 6))
    joint: list[tuple[list[Raw], float]] = [
        ([("loader.num_workers", 8), ("host.num_threads", 4)], 2.19),
        ([("loader.num_workers", 8), ("loader.prefetch_factor", 4)], 1.93),
        ([("loader.num_workers", 8), ("loader.pin_memory", True)], 1.90),
        ([("loader.num_workers", 16), ("host.num_threads", 4)], 1.71),
        ([("precision.autocast", "bf16"), ("layout.channels_last", True)], 1.11),
        (WHOLE, WHOLE_SPEEDUP),
        ([*WHOLE, ("loader.pin_memory", True)], 2.32),
    ]
    for block in range(1, 5):
        clock.run("", "prune", block)
        for raws, speedup in joint:
            clock.run(key(raws), "prune", block, speedup)
    found += [estimate(key(raws), "", "prune", speedup, 0.013, 4) for raws, speedup in joint]
    whole = [*WHOLE, ("loader.pin_memory", True)]
    worth = {
        "host.num_threads": 1.192,
        "loader.num_workers": 1.87,
        "precision.autocast": 1.041,
        "loader.pin_memory": 1.002,
    }
    for block in range(1, 9):
        clock.run("", "prune", block)
        clock.run(key(whole), "prune", block, WHOLE_SPEEDUP)
        for raw in whole:
            left = key([other for other in whole if other != raw])
            clock.run(left, "prune", block, WHOLE_SPEEDUP / worth[raw[0]])
    for raw in whole:
        left = key([other for other in whole if other != raw])
        p = 0.41 if raw[0] == "loader.pin_memory" else 0.0004
        found.append(
            estimate(
                key(whole), left, "prune", worth[raw[0]], 0.009, 8, p=p, corrected_over=4, confidence=0.95
            )
        )
    return found


def _confirmed(clock: Clockwork) -> Comparison:
    pairs = []
    for block in range(1, 9):
        baseline_s = clock.run("", "confirm", block)
        candidate_s = clock.run(key(WHOLE), "confirm", block, WHOLE_SPEEDUP)
        pairs.append(Pair("baseline" if block % 2 else "candidate", baseline_s, candidate_s))
    return of_run(
        Comparison,
        id="confirm",
        command=COMMAND,
        candidate_settings=[Setting(*raw) for raw in sorted(WHOLE)],
        verdict="faster",
        speedup=2.309,
        ci=(2.268, 2.351),
        num_pairs=8,
        pairs=pairs,
        warmup_steps=24,
        window_steps=120,
        baseline=ArmSummary(s_per_sample=BASELINE_S, samples_per_s=1 / BASELINE_S, time_to_first_step_s=6.2),
        candidate=ArmSummary(
            s_per_sample=BASELINE_S / WHOLE_SPEEDUP,
            samples_per_s=WHOLE_SPEEDUP / BASELINE_S,
            time_to_first_step_s=7.3,
        ),
        facts=FACTS,
    )


def _fates() -> dict[str, CandidateOutcome]:
    fates: dict[str, CandidateOutcome] = {}
    for raw, speedup, *_ in TRIED:
        if raw in WHOLE:
            fate = CandidateOutcome("proved", "Without it the whole is slower in every block.")
        elif speedup < 0.97:
            fate = CandidateOutcome(
                "slower", f"{1 / speedup:.2f}× slower than the command as it is, in 6 blocks."
            )
        elif raw[0] == "loader.num_workers":
            fate = CandidateOutcome("not-needed", "loader.num_workers=8 is faster.")
        elif raw[0] == "loader.pin_memory":
            fate = CandidateOutcome("not-needed", "It helps alone by 2.1%; without it the whole is as fast.")
        elif raw[0] == "optimizer.fused":
            fate = CandidateOutcome(
                "unproved", "Six blocks did not settle a gain of 1.1%; 14 would likely do."
            )
        else:
            fate = CandidateOutcome("no-effect", "Its interval lies within ±1% of no change.")
        fates[key([raw])] = fate
    for raw, ended, detail in BROKEN:
        kind: Any = "failed" if ended == "timeout" else ended
        fates[key([raw])] = CandidateOutcome(kind, detail)
    fates["alloc.backend=cudaMallocAsync"] = CandidateOutcome(
        "not-tried", "It can save 0.6% at most, less than the margin."
    )
    return fates


def rich(**changes: Any) -> Study:
    """Of an input-bound image trainer: settings of every fate."""
    clock = Clockwork()
    estimates = _searched(clock)
    confirmed = _confirmed(clock)
    whole = [Setting(*raw) for raw in sorted(WHOLE)]
    values = [math.log(trial.value) for trial in clock.trials if trial.arm == "" and trial.value]
    fields: dict[str, Any] = {
        "id": "20261122-101500-123-abcdef",
        "command": COMMAND,
        "cwd": Path("/home/me/resnet"),
        "budget_s": 5400.0,
        "allow": ["numerics"],
        "extra": ["env.CUDA_MODULE_LOADING=EAGER"],
        "exclude": ["alloc.max_split_size_mb"],
        "values": ["loader.num_workers=2,4,8,16"],
        "run_s": 14.2,
        "unit": "s/sample",
        "step": "one batch drawn, one optimizer step",
        "warmup_steps": 24,
        "window_steps": 120,
        "facts": FACTS,
        "diagnosis": diagnosis(),
        "diagnosis_with_recipe": after(),
        "candidates": list(_candidates()),
        "not_offered": [
            NotOffered(
                Setting("transfer.non_blocking", True),
                "it may change what the program computes",
                ["h2d-blocking"],
            ),
            NotOffered(Setting("env.CUDA_LAUNCH_BLOCKING", "@unset"), "the command has it already"),
        ],
        "trials": clock.trials,
        "estimates": estimates,
        "guarded": [
            _guarded(key([("precision.autocast", "bf16")]), difference=0.0061, own=0.0004, tolerance=0.02),
            _guarded(
                key([("precision.autocast", "fp16")]), difference=0.31, own=0.0004, tolerance=0.05, ok=False
            ),
            _guarded(key(WHOLE), difference=0.0064, own=0.0004, tolerance=0.02),
        ],
        "readback": {
            "loader.num_workers": Readback("loader.num_workers", "8", "8", "the loader's attribute", True),
            "host.num_threads": Readback("host.num_threads", "4", "4", "torch.get_num_threads()", True),
            "precision.autocast": Readback(
                "precision.autocast", "bf16", Unknown("no call was seen"), "", None
            ),
        },
        "outcomes": _fates(),
        "noise": statistics.stdev(values),
        "selected": sorted([*whole, Setting("loader.pin_memory", True)], key=str),
        "recipe": whole,
        "confirmed": confirmed,
        "break_even": BreakEven(start_s=19.8, baseline_start_s=12.6, after_steps=154),
        "verdict": "Three settings make it 2.31× faster (2.27× to 2.35×, 95%), proved on 8 fresh pairs.",
        "finished": True,
        "warnings": [
            "The GPU's clock was capped by its power limit in 3 of 214 runs.",
            "Two runs were void: another program used the GPU.",
        ],
        "attempts": [
            Attempt("2026-11-22T10:15:00Z", "2026-11-22T10:52:10Z", "user"),
            Attempt("2026-11-22T11:03:00Z", "2026-11-22T11:43:30Z", "done"),
        ],
    }
    return of_run(Study, **(fields | changes))


def _guarded(arm: str, *, ok: bool = True, **figures: float) -> Guarded:
    return Guarded(arm=arm, what="losses", num_values=20, ok=ok, **figures)


def on_top() -> Study:
    """One that began from a recipe and proved something on top of it."""
    base = [Setting("cudnn.benchmark", True)]
    recipe = Recipe(Header(schema=SCHEMA, speedup=1.2, ci=(1.1, 1.3)), {"cudnn.benchmark": True})
    return rich(base_recipe=BaseRecipe("/runs/a study/recipe.toml", recipe), settings=base)


def empty(**changes: Any) -> Study:
    """Begun, and nothing has run yet."""
    fields: dict[str, Any] = {
        "id": "s0",
        "command": ["python", "train.py"],
        "cwd": Path("/home/me"),
        "budget_s": 900.0,
    }
    return of_run(Study, **(fields | changes))


def unfinished() -> Study:
    """Stopped in the middle of a round."""
    whole = rich()
    trials = [
        trial
        for trial in whole.trials
        if trial.phase == "pilot" or (trial.phase == "prune" and trial.block < 3)
    ]
    fates = {name: fate for name, fate in whole.outcomes.items() if fate.kind in ("failed", "out-of-memory")}
    return msgspec.structs.replace(
        whole,
        trials=trials,
        estimates=[one for one in whole.estimates if one.phase == "switch"],
        guarded=[],
        outcomes=fates,
        readback={},
        selected=None,
        recipe=None,
        confirmed=None,
        break_even=None,
        diagnosis_with_recipe=Unknown("not yet made"),
        verdict="",
        finished=False,
        warnings=[],
        attempts=[Attempt("2026-11-22T10:15:00Z", "2026-11-22T10:32:10Z", "user")],
    )


def only_failures() -> Study:
    """Every candidate failed."""
    candidates = [one for one in rich().candidates if one.id in {key([raw]) for raw, _, _ in BROKEN}]
    trials = [
        Trial(arm="", phase="pilot", block=0, ended="measured", value=BASELINE_S, began_s=30.0, wall_s=14.0)
    ]
    trials += [
        Trial(
            arm=one.id,
            phase="pilot",
            block=0,
            ended="failed",
            began_s=50.0 + 9 * at,
            wall_s=8.0,
            detail="ValueError",
        )
        for at, one in enumerate(candidates)
    ]
    return empty(
        candidates=candidates,
        trials=trials,
        outcomes={one.id: CandidateOutcome("failed", "ValueError: it cannot be so") for one in candidates},
        finished=True,
        recipe=[],
        verdict="Every setting that was tried made the command fail.",
        diagnosis=diagnosis(
            shares=Unknown("the profiler could not record it"), steps=Unknown("no step was seen")
        ),
    )


def one_candidate() -> Study:
    """A single setting, which does nothing."""
    only = Candidate(setting=Setting("loader.pin_memory", True), effect="exact", bound=0.04)
    return empty(
        candidates=[only],
        estimates=[estimate(only.id, "", "prune", 1.001, 0.004, 8)],
        outcomes={only.id: CandidateOutcome("no-effect", "Its interval lies within ±1% of no change.")},
        trials=[
            Trial(
                arm=arm, phase="prune", block=at, ended="measured", value=0.01, began_s=30.0 * at, wall_s=12.0
            )
            for at in range(1, 9)
            for arm in ("", only.id)
        ],
        finished=True,
        recipe=[],
        diagnosis=diagnosis(),
        verdict="Nothing that was tried makes it faster.",
    )


def large(num_candidates: int = 60, num_trials: int = 2000) -> Study:
    """More than fits a screen."""
    candidates = [
        Candidate(
            setting=Setting(f"env.SOME_RATHER_LONG_NAME_{at}", at), effect="exact", bound=(at + 1) / 100
        )
        for at in range(num_candidates)
    ]
    dice = random.Random(3)
    arms = ["", *(one.id for one in candidates)]
    trials = [
        Trial(
            arm=arms[at % len(arms)],
            phase="prune",
            block=at // len(arms) + 1,
            ended="measured",
            value=0.01 * math.exp(dice.gauss(0, 0.02)),
            began_s=20.0 + 15.0 * at,
            wall_s=14.0,
            void="another program used the GPU" if at % 97 == 0 else "",
        )
        for at in range(num_trials)
    ]
    return empty(
        candidates=candidates,
        trials=trials,
        estimates=[
            estimate(one.id, "", "prune", math.exp(dice.gauss(0, 0.01)), 0.012, 30) for one in candidates
        ],
        outcomes={
            one.id: CandidateOutcome("no-effect", "Its interval lies within ±1% of no change.")
            for one in candidates
        },
        finished=True,
        recipe=[],
        verdict="Nothing that was tried makes it faster.",
        diagnosis=diagnosis(),
    )
