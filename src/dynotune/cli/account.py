"""`dynotune account`: run the command to its end, and show where the time of the whole run went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer

from dynotune.cli import answers, run_options
from dynotune.cli.options import Json, check_json
from dynotune.cli.run import RecipeFile, check_proved
from dynotune.cli.run_options import runs_a_command
from dynotune.schema import recipe as recipes
from dynotune.schema.errors import CommandFailed
from dynotune.schema.run import RunSpec
from dynotune.text import words

if TYPE_CHECKING:
    from dynotune.measure.live import Outcome

NUM_LAST_LINES = 12


@runs_a_command("settings")
def account(context: typer.Context, recipe: RecipeFile = None, json: Json = None, *, run: RunSpec) -> None:
    check_json(json)
    proved = None if recipe is None else recipes.read(recipe)
    if proved is not None:
        from dynotune.recipes import checking

        checked = checking.settings(proved, str(recipe), run.settings)
        for line in checking.not_applied(checked.left_out, str(recipe)):
            answers.say(line)
        run = msgspec.structs.replace(run, settings=checked.applied)
    run_options.check_run(context, run, looks_for_script=True)
    from dynotune.measure.account import accounted
    from dynotune.measure.live import facts_of
    from dynotune.report import Progress, console, on_terminal

    if proved is not None and recipe is not None:
        check_proved(proved, recipe, facts_of(run), run.command, strict=False)

    with Progress(console(stderr=True)) as watcher:
        found, outcome = accounted(run, watcher, recipe=proved)
    answers.show(on_terminal, found, json)
    _raise_if_failed(outcome)


def _raise_if_failed(outcome: Outcome) -> None:
    """Say what the command printed last if it failed by itself: its account alone does not tell why."""
    from dynotune.launch import last_lines

    code = outcome.run.exit_code
    if outcome.run.ended_by != "command" or not code:
        return
    raise CommandFailed(
        f"The command failed {words.ending(code)}; the account covers its time until then.",
        hint=f"All that it printed is in {outcome.folder}.",
        command_exit_code=code,
        last_lines=last_lines(outcome.folder, NUM_LAST_LINES),
    )
