"""Write a recipe as a patch of the program's files, and measure what the patch gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dynotune.schema import redaction
from dynotune.schema.errors import CannotRunHere, UsageError

if TYPE_CHECKING:
    from dynotune.knobs import Checked
    from dynotune.measure.live import CompareRequest
    from dynotune.recipes.patch import Patch
    from dynotune.schema.recipe import Recipe
    from dynotune.schema.run import RunSpec


def made(found: Recipe, checked: Checked, run: RunSpec) -> Patch:
    """Return the patch of the files that the recipe's command, or the one after `--`, runs here.

    Raises:
        UsageError: there is no command.
        CannotRunHere: as `patch_of`; no setting has a place in the files.
    """
    from dynotune.launch.process import revision
    from dynotune.recipes.patch import patch_of

    command = run.command or found.recipe.command
    if not command:
        raise UsageError(
            "The recipe does not say on what command it was proved, so its files are unknown.",
            hint="Put the command after two dashes: -- python train.py",
        )
    has_gpu = found.recipe.speedup is None or found.facts.get("gpu_count") != 0
    root = revision.top_level(run.cwd) or run.cwd
    patch = patch_of(checked.applied, command, root, run.cwd, has_gpu=has_gpu)
    if not patch.diff:
        reasons = "; ".join(f"{setting}: {reason}" for setting, reason in patch.refused.items())
        if not patch.refused:
            reasons = "the files hold each setting already" if patch.places else "it has no setting to apply"
        raise CannotRunHere(
            f"There is no patch of this recipe: {reasons}.",
            hint="dynotune run --recipe applies the recipe without changing any file.",
        )
    return patch


def text(patch: Patch, found: Recipe, file: Path, output: str | None) -> bytes:
    """Return the diff below a heading that `git apply` skips: contents, omissions and use."""
    from dynotune.report import patch_heading

    name = output or "FILE.patch"
    command = redaction.words(found.recipe.command)
    heading = patch_heading(found, file.name, name, command, patch.places, patch.refused)
    return redaction.redacted(heading).encode() + patch.diff


def say_refused(patch: Patch) -> None:
    from dynotune.report import console

    screen = console(stderr=True)
    for setting, reason in patch.refused.items():
        screen.print(f"Not in the patch: {setting}: {reason}.", markup=False, highlight=False, soft_wrap=True)


def request(patch: Patch, run: RunSpec, pairs: int, margin: float, budget: float | None) -> CompareRequest:
    """Return the comparison of the working tree with a commit that holds the patched files.

    Raises UsageError: the program lies in no repository of git.
    """
    from dynotune import knobs
    from dynotune.launch.process import revision
    from dynotune.measure.live import CompareRequest

    if revision.top_level(run.cwd) is None:
        raise UsageError(
            f"--verify runs the command with the patched files as a revision of git, but {run.cwd} "
            "is in no repository "
            "of git.",
            hint="Make a repository with git init, git add and git commit.",
        )
    commit = revision.commit_with(patch.root, patch.edited, "The settings of a recipe, to be measured")
    candidate = [*run.settings, knobs.parse(f"git.ref={commit}")]
    return CompareRequest(run=run, candidate=candidate, max_pairs=pairs, margin=margin, budget_s=budget)
