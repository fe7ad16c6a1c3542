"""`dynotune demo`: settings compared on an ordinary training script, on this machine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynotune.schema.errors import CannotRunHere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from dynotune.report.terminal import Progress
    from dynotune.schema.comparison import Comparison

# On two cores one loading process and a many-threaded model are in each other's way, so these two go
# together. The last is often advised, and only means something to cuBLAS.
ARMS = (
    ("loader.num_workers=2", "host.num_threads=1"),
    ("env.CUBLAS_WORKSPACE_CONFIG=:4096:8",),
)
MAX_PAIRS = 8


def demo(
    python: Annotated[
        str, typer.Option(metavar="PATH", help="The interpreter to train with; it needs torch and Pillow.")
    ] = sys.executable,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", metavar="DIR", help="Where the records go.")
    ] = None,
) -> None:
    """Train a small network on 600 photographs and compare settings on it, in under 4 minutes.

    The photographs are made once and kept in the user's cache folder. The training script is an ordinary one
    that knows nothing of dynotune. What is printed was measured here and now: on a busy machine an
    `undecided` is the true answer.
    """
    from rich.console import Console

    from dynotune.report.terminal import Progress, comparison_table, overview

    script = example("train_images.py")
    if python == sys.executable:
        _check_packages()
    told, results = Console(stderr=True, highlight=False), Console(highlight=False)
    command = [python, str(script), str(_photographs(told))]
    told.print(f"The training script: {script}", style="dim", soft_wrap=True)

    comparisons = []
    for number, settings in enumerate(ARMS, start=1):
        told.print(f"\n{number} of {len(ARMS)}: {' '.join(settings)}", style="bold", soft_wrap=True)
        with Progress(told) as progress:
            comparisons.append(_compare(settings, command, progress=progress, run_dir=run_dir))
        results.print(comparison_table(comparisons[-1]))
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
    settings: Sequence[str], command: list[str], *, progress: Progress, run_dir: Path | None
) -> Comparison:
    """The very call that `dynotune compare` makes, of at most `MAX_PAIRS` pairs."""
    raise NotImplementedError("measure.protocol.compare")


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
