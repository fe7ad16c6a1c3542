"""`dynotune demo`: tune an ordinary training script on this machine."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from dynotune.cli import run_options
from dynotune.cli.options import option
from dynotune.cli.run_options import RunDir, runs_folder
from dynotune.schema import private
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from rich.console import Console

    from dynotune.schema.study import Study

BUDGET_S = 160.0
# These values are known for this script, so no pilot has to find them: the script is steady by then, and a
# window is an epoch (600 photographs in batches of 16), so each window starts the loader workers once.
WARMUP_STEPS, WINDOW_STEPS = 12, 38


def demo(python: Annotated[str, option("demo_python")] = sys.executable, run_dir: RunDir = None) -> None:
    from dynotune.cli.tune import studied
    from dynotune.report import console
    from dynotune.search import TuneRequest

    script = example("train_images.py")
    if python == sys.executable:
        _check_packages()
    told = console(stderr=True)
    # Enough epochs for the live run, in which settings are switched.
    command = [*map(_from_here, (python, str(script), str(_photographs(told)))), "--epochs", "100"]
    told.print(f"The training script: {script}", style="dim", soft_wrap=True)
    run = RunSpec(
        command=command,
        cwd=Path.cwd(),
        env=run_options.environment(),
        base=runs_folder(run_dir),
        seed=0,
        warmup_steps=WARMUP_STEPS,
        window_steps=WINDOW_STEPS,
    )
    folder, study = studied(TuneRequest(run=run), BUDGET_S)
    _show(study, folder)


def _show(study: Study, folder: Path) -> None:
    """Show the study on one screen, which ends with the answer, and then how to use it and where the report
    is."""
    import dataclasses

    from rich.text import Text

    from dynotune.report import On, console, layout_of, shown
    from dynotune.schema.document import without_secrets
    from dynotune.search import RECIPE, REPORT
    from dynotune.text import words

    report = layout_of(without_secrets(study), recipe_path=str(folder / RECIPE))
    # With a recipe, its use comes before a search that goes on.
    lines = sorted((line.words for line in report.use), key=lambda quoted: quoted[1] != "run")
    use = lines[0] if lines else ["dynotune", "tune", "--", "python", "train.py"]
    screen = console()
    screen.print(shown(dataclasses.replace(report, use=[]), On.SCREEN))
    for name, text in (("use it", " ".join(use)), ("report", str(folder / REPORT))):
        screen.print(Text.assemble((f"{name:<9}", "dim"), words.plain(text, longest=4000)), soft_wrap=True)


def _from_here(path: str) -> str:
    """Write a path in a subfolder of the current folder relative to it, so that a command to be pasted is
    short."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if here in Path(path).parent.parents else path


def example(name: str) -> Path:
    """Return the path of the example `name`, in the installed package or beside the source tree.

    Raises CannotRunHere if the example is in neither place.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / name).is_file():
            return folder / name
    raise CannotRunHere(
        f"The example {name} is not part of this installation.", hint="Install dynotune from its wheel again."
    )


@cache
def module(name: str) -> ModuleType:
    """Import the example `name`. Raises CannotRunHere: as `example`."""
    file = example(name)
    spec = importlib.util.spec_from_file_location(f"dynotune_examples_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


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


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    folder = user_cache_path("dynotune")
    return folder if folder.is_absolute() else private.state_folder() / "cache"


def _photographs(console: Console) -> Path:
    from rich.progress import Progress as Bar

    maker = module("demo/photographs.py")
    with Bar(console=console, transient=True) as bar:
        task = bar.add_task("Making photographs, once", total=maker.NUM_PHOTOGRAPHS, start=False)

        def advance(done: int) -> None:
            bar.start_task(task)
            bar.update(task, completed=done)

        folder: Path = maker.photographs(_cache_folder(), progress=advance)
        return folder
