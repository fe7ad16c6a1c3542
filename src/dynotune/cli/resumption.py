"""Find the folder that `--resume` names, and say how to resume."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import typer

from dynotune.cli import run_names, run_options, stopping
from dynotune.cli.options import given
from dynotune.schema import redaction
from dynotune.schema.errors import CONTRADICTIONS, UsageError
from dynotune.schema.home import expanded


def resumed_folder(
    context: typer.Context, resume: str, base: Path, file: str, *, but: Collection[str] = ()
) -> Path:
    """Find the folder for `--resume NAME|PATH`: any folder, or the name of a folder below `base`.

    Args:
        file: the file by which such a folder is recognised, for example `comparison.json`.
        but: parameters that may be given together with `--resume`; all others keep the values of the first
            run.

    Raises UsageError if the folder does not exist, or another parameter was given.
    """
    from dynotune import launch

    what = file.removesuffix(".json")
    places = (expanded(Path(resume)), run_names.found(resume, base).absolute())
    folder = next((place for place in places if (place / file).is_file()), None)
    is_typed_again = folder is not None and _is_typed_again(folder, file)
    typed = ("settings", "baseline") if is_typed_again else ()
    extra = given(context, but=("resume", "base", "lock", "json", *typed, *but))
    if context.find_root().obj and not is_typed_again:
        extra.append("command")
    if extra:
        raise UsageError(
            f"--resume continues a {what} as it was begun, and takes no {' and no '.join(extra)}.",
            hint=(
                f"Leave it out: {context.command_path} --resume {resume}; or leave --resume out to begin "
                "a new one."
            ),
        )
    if folder is not None:
        launch.hold(folder)
        return folder
    known = sorted(path.parent.name for path in base.glob(f"*/{file}"))[-3:]
    raise UsageError(
        f"There is no {what} {resume}.",
        hint=f"The last ones in {base} are: {', '.join(known)}."
        if known
        else "Was it made with another --run-dir?",
    )


def _is_typed_again(folder: Path, file: str) -> bool:
    """Return whether command and settings may be typed with --resume: if secrets are missing, or the folder
    is foreign.

    `schema.resumption.completed` and `origin.refuse_foreign` report what is missing.
    """
    from dynotune.launch.process import origin
    from dynotune.schema import untrusted

    try:
        raw = untrusted.read(folder / file)
        return redaction.MARK.encode() in raw or any(origin.to_type(folder, raw))
    except (OSError, *CONTRADICTIONS):
        return False  # the code that reads the document will say what is wrong with it


def resume_with(folder: Path) -> str:
    """Return the argument of `--resume` for this folder: its name if the name is enough, else its path.

    Whoever asks says how to go on, so that nothing else has to say that the command was stopped.
    """
    from dynotune.text import words

    stopping.stop.is_said = True
    return folder.name if folder.parent == run_options.runs_folder(None) else words.command([str(folder)])
