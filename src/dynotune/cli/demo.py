"""`dynotune demo`: settings compared on an ordinary training script, on this machine."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynotune.cli.options import environment, runs_folder
from dynotune.schema.errors import CannotRunHere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dynotune.schema.comparison import Comparison

# The script decodes its photographs between the steps; the first lets others do it. The second is often
# advised, and means something to cuBLAS alone.
ARMS = (
    ("loader.num_workers=2",),
    ("env.CUBLAS_WORKSPACE_CONFIG=:4096:8",),
)
MAX_PAIRS = 8
# Of all comparisons together. What it no longer affords is said and left out: the second shows what no effect
# looks like, and is worth no more than that.
BUDGET_S = 225.0
# Runs without which nothing can be told: a pilot of each arm and four pairs.
FEWEST_RUNS = 10
# Known of this script, so that no pilot has to find it: steady by then, and an epoch of 600 photographs
# in batches of 16, so that each window starts its loading processes once.
WARMUP_STEPS, WINDOW_STEPS = 12, 38


def demo(
    python: Annotated[
        str, typer.Option(metavar="PATH", help="The interpreter to train with; it needs torch and Pillow.")
    ] = sys.executable,
    run_dir: Annotated[Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the records go.")] = None,
) -> None:
    """Train a small network on 600 photographs and compare settings on it, in 2 to 4 minutes.

    The photographs are made once and kept in the user's cache folder. The training script is an ordinary one
    that knows nothing of dynotune. What is printed was measured here and now: on a busy machine an
    `undecided` is the true answer.
    """
    from rich.console import Console

    from dynotune.cli.compare import show
    from dynotune.report.terminal import overview

    script = example("train_images.py")
    if python == sys.executable:
        _check_packages()
    told, results = Console(stderr=True, highlight=False), Console(highlight=False)
    command = [python, str(script), str(_photographs(told))]
    told.print(f"The training script: {script}", style="dim", soft_wrap=True)

    comparisons: list[Comparison] = []
    end_s = time.monotonic() + BUDGET_S
    for number, settings in enumerate(ARMS, start=1):
        told.print(f"\n{number} of {len(ARMS)}: {' '.join(settings)}", style="bold", soft_wrap=True)
        run_s = comparisons[-1].run_s if comparisons else None
        left_s = end_s - time.monotonic()
        if run_s is not None and left_s < FEWEST_RUNS * run_s:
            told.print(f"Left out: a run takes {run_s:.0f} s here, and the demo is to end in 4 minutes.")
            continue
        comparisons.append(_compare(settings, command, run_dir=run_dir, budget_s=left_s if comparisons else None))
        show(comparisons[-1], json=None)
    results.print()
    results.print(overview(comparisons))
    told.print("\nOn your own command: dynotune compare SETTING… -- python train.py", style="dim")


def example(name: str) -> Path:
    """The example `name`: within the installed package, else beside the source tree.

    Raises:
        CannotRunHere: it is in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / name).is_file():
            return folder / name
    raise CannotRunHere(
        f"The example {name} is not part of this installation.", hint="Install dynotune from its wheel again."
    )


def _compare(
    settings: Sequence[str], command: list[str], *, run_dir: Path | None, budget_s: float | None
) -> Comparison:
    """The very call that `dynotune compare` makes, of at most `MAX_PAIRS` pairs."""
    from dynotune.cli.compare import measure, parse
    from dynotune.measure.request import Request

    request = Request(
        command=command,
        settings=parse(settings),
        cwd=Path.cwd(),
        env=environment(),
        base=runs_folder(run_dir),
        warmup_steps=WARMUP_STEPS,
        window_steps=WINDOW_STEPS,
        max_pairs=MAX_PAIRS,
        budget_s=budget_s,
    )
    return measure(request)


def _check_packages() -> None:
    missing = [
        package
        for module, package in (("torch", "torch"), ("numpy", "numpy"), ("PIL", "pillow"))
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise CannotRunHere(
            f"The demo trains with {sys.executable}, which lacks {' and '.join(missing)}.",
            hint=f"{sys.executable} -m pip install {' '.join(missing)}; or name another one with --python.",
        )


def _photographs(console: Console) -> Path:
    from platformdirs import user_cache_path
    from rich.progress import Progress as Bar

    from dynotune.cli.photographs import NUM_PHOTOGRAPHS, photographs

    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("Making photographs, once", total=NUM_PHOTOGRAPHS, start=False)

        def advance(done: int) -> None:
            bar.start_task(task)
            bar.update(task, completed=done)

        return photographs(user_cache_path("dynotune"), progress=advance)
