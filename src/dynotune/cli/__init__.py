"""The command line, with one module per subcommand. Only this room prints and exits.

A subcommand `<name>` is the function `<name>` in the module `dynotune.cli.<name>`; its help is in help.toml.
Help texts are not docstrings, because `python -OO` strips docstrings. A subcommand with subcommands of its
own is a Typer. Only the module of the subcommand that was asked for is imported. The words after the first
`--` are the user's command; the subcommand gets them unchanged from `command_of`.

The work of a subcommand is done in the rooms below, and `report` renders its result.
"""

import contextlib
import io
import os
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import typer

from dynotune.cli import completion, limits, signs, stopping
from dynotune.report import loudness
from dynotune.schema.errors import CannotRunHere, CommandFailed, DynotuneError, UsageError

__all__ = ["command_of", "main", "with_command"]

RUN_PANEL = "How the command is run"
OFTEN_USED = ("objective", "settings")
"""Options of a run that every help shows."""
ALL_OF_HELP = "--help-all"
FEW, NUM_NAMED = 4, 3
HELP = "Proves on your own PyTorch command which settings help."
WITH_COMMAND = ("diagnose", "account", "compare", "bisect", "tune", "precision", "run", "watch")
TAKE_COMMANDS = (*WITH_COMMAND, "trace", "memory", "doctor", "startup", "recipe", "plan")
_PROGRAM = re.compile(r"(.*/)?(python[\d.]*|torchrun|accelerate|deepspeed|srun|uv|yolo)|[^=]+\.py")
WITHOUT_NUMBERS = (
    "run",
    "watch",
    "recipe",
    "doctor",
    "explain",
    "knobs",
    "mcp",
    "runs",
    "--help",
    "--version",
)
EPILOG = (
    "Exit codes: 0 done; 1 a gate such as --fail-on failed; 2 wrong usage; 3 cannot run here; 4 your "
    "command failed; 70 a bug in dynotune; 130 interrupted; 143 ended by SIGTERM. "
    "`dynotune run` and `watch` exit as your command does."
)
INTERNAL_ERROR = 70
INTERRUPTED = 130
LONGEST_MESSAGE = 4000


def _flowing(text: str) -> str:
    """Return a text of help whose paragraphs fill the terminal's width, and whose examples are set off."""
    flowing = ""
    for paragraph in text.strip().split("\n\n"):
        is_example = paragraph.startswith("dynotune ")
        line = f"[dim]$[/dim] [bold]{paragraph}[/bold]" if is_example else paragraph.replace("\n", " ")
        follows_example = is_example and flowing.endswith("[/bold]")
        flowing += ("\n" if follows_example else "\n\n" if flowing else "") + line
    return flowing


HELP_OF: dict[str, dict[str, str]] = {
    name: {kind: _flowing(text) if kind == "help" else text for kind, text in texts.items()}
    for name, texts in tomllib.loads(files(__name__).joinpath("help.toml").read_text("utf-8")).items()
}
COMMANDS = {name: told["summary"] for name, told in HELP_OF.items() if "summary" in told}


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run `dynotune` with `argv` (without the program's name; by default the arguments of this process), and
    exit."""
    given = list(sys.argv[1:] if argv is None else argv)
    if os.environ.get(completion.VARIABLE):
        breaks_words = completion.is_broken_at_equals()
        _complete(completion.words_asked(), breaks_words=breaks_words)
    at = given.index("--") if "--" in given else len(given)
    ours, command = given[:at], given[at + 1 :] if at < len(given) else None
    # Accept the option on either side of the subcommand: nobody remembers which side it belongs to.
    debug = "--debug" in ours
    ours = [argument for argument in ours if argument != "--debug"] or ([] if command else ["--help"])
    loudness.said.update(quiet=False, verbose=False, plain=False)
    helps_with_all = ALL_OF_HELP in ours
    if next((word for word in ours if not word.startswith("-")), "") == "report":
        # The parser takes -1, the last run, for an option.
        ours = [f"run{argument}" if re.fullmatch(r"-\d+", argument) else argument for argument in ours]
    ours = ["--help" if argument == ALL_OF_HELP else argument for argument in ours]
    code = 0
    limits.one_thread_for_numbers()
    for stream in (sys.stdout, sys.stderr):
        signs.let_pass(stream)
    try:
        try:
            if command is None:
                _refuse_command_without_dashes(ours)
            if not set(ours) & set(WITHOUT_NUMBERS):
                limits.refuse_little_memory()
            parser = _parser(ours, helps_with_all=helps_with_all)
            more = {"default_map": _project_defaults(parser, ours), "obj": command, "standalone_mode": False}
            with stopping.like_ctrl_c(ours[0]):
                code = parser.main(args=ours, prog_name="dynotune", **more) or 0
        except SystemExit as ended:
            code = ended.code  # type: ignore[assignment]
        if sys.stdout is not None:  # closed
            sys.stdout.flush()
    except KeyboardInterrupt:  # while a subcommand is imported; later the parser returns this code
        code = INTERRUPTED
        _give_up_output()
    except Exception as error:
        if debug:
            raise
        error = limits.of_the_machine(error) or _of_the_parser(error, ours) or error
        code = error.exit_code if isinstance(error, DynotuneError) else INTERNAL_ERROR
        try:
            _explain(error)
        except (
            OSError,
            MemoryError,
            ImportError,
        ):  # the limit of files or memory is so low that even this fails
            code = CannotRunHere.exit_code
            with contextlib.suppress(OSError):
                os.write(2, f"error: The system refused what dynotune needs.\nnext: {limits.HINT}\n".encode())
        _give_up_output()
    if code == INTERRUPTED and ours[:1] and ours[0] not in stopping.TRANSPARENT:
        stopping.say_stopped()
        code = stopping.TERMINATED if stopping.stop.by_term else code
    if sys.flags.inspect or stopping.stop.is_abrupt:
        # PYTHONINSPECT is meant for the command. It would keep dynotune's own interpreter open, and change
        # its exit code.
        _give_up_output()
        os._exit(code if isinstance(code, int) else 1)
    sys.exit(code)


def _of_the_parser(error: Any, ours: Sequence[str]) -> UsageError | None:
    """Return an error of click's parser, which typer may wrap, as a DynotuneError."""
    if not hasattr(error, "format_message"):
        return None
    what = error.format_message().removesuffix(".") or "Something is missing"
    named = " ".join(["dynotune", *(word for word in ours[:1] if word in COMMANDS)])
    path = error.ctx.command_path if error.ctx else named
    return UsageError(
        what if what.endswith(("?", ")")) else f"{what}.", hint=f"{path} --help shows what there is."
    )


def _give_up_output() -> None:
    """Discard buffered output that a full disk cannot take: Python would retry at exit, and complain."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def command_of(context: typer.Context) -> list[str]:
    """Return the user's command: the words after `--`. Raises UsageError if there is no command after
    `--`."""
    command = context.find_root().obj
    if not command:
        raise UsageError(
            "There is no command to run.",
            hint=f"Put it after two dashes: {context.command_path} … -- python train.py",
        )
    return list(command)


def _refuse_command_without_dashes(ours: Sequence[str]) -> None:
    words = (
        (at, word)
        for at, word in enumerate(ours)
        if at and ours[at - 1] != "--python" and not word.startswith("-")
    )
    begin = next((at for at, word in words if _PROGRAM.fullmatch(word)), None)
    if ours and _PROGRAM.fullmatch(ours[0]) and ours[0] not in COMMANDS:
        ours, begin = ["diagnose", *ours], 1
    if begin is not None and ours[0] in TAKE_COMMANDS:
        python = ["python"] if re.fullmatch(r"[^/]+\.py", ours[begin]) else []
        line = " ".join(["dynotune", *ours[:begin], "--", *python, *ours[begin:]])
        raise UsageError("The command has to stand after two dashes.", hint=line)


def _complete(typed: Sequence[str], *, breaks_words: bool) -> NoReturn:
    """Print completions for the shell, and exit. The shell itself completes the user's command after `--`.

    `breaks_words`: whether the shell gave a word with `=` in pieces, and replaces only the last piece.
    """
    from typer.completion import get_completion_inspect_parameters
    from typer.core import TyperCommand

    get_completion_inspect_parameters()  # makes the shells known
    command = TyperCommand("dynotune", add_help_option=False) if "--" in typed[:-1] else _parser(typed)
    if not breaks_words:
        command.main(args=[], prog_name="dynotune")
        sys.exit(1)
    offered = io.StringIO()
    with contextlib.redirect_stdout(offered), contextlib.suppress(SystemExit):
        command.main(args=[], prog_name="dynotune")
    print(completion.behind_equals(offered.getvalue()), end="")
    sys.exit(0)


def _parser(ours: Sequence[str], *, helps_with_all: bool = False) -> Any:
    """Return the command line's parser. Only the subcommand in `ours` is imported; the others are only
    named."""
    asked = next((argument for argument in ours if not argument.startswith("-")), None)
    settings = {"help_option_names": ["-h", "--help"]}
    app = typer.Typer(rich_markup_mode="rich", epilog=EPILOG, name="dynotune", context_settings=settings)
    app.callback(help=HELP)(_options)
    for name, summary in COMMANDS.items():
        function: Callable[..., Any] = _named_only
        long_help = None
        if name == asked:
            module = import_module(f"dynotune.cli.{name}")
            function, long_help = getattr(module, name), HELP_OF.get(name, {}).get("help")
            if isinstance(function, typer.Typer):
                app.add_typer(function, name=name, short_help=summary)
                continue
        of_command = with_command() if name in WITH_COMMAND else None
        app.command(name, help=long_help, short_help=summary, cls=of_command)(function)
    command = _without_types(_with_loudness(typer.main.get_command(app)))
    if {"--help", "-h"} & set(ours):
        _shorten_help(command, everything=helps_with_all)
    for param in command.params:
        if param.name in ("install_completion", "show_completion"):
            param.rich_help_panel = "Shell completion"
    return command


def _without_types(command: Any, above: Any = None) -> Any:
    """Remove the types of flags and arguments from the help of `command` and its subcommands: they tell
    nothing."""
    context = command.context_class(command, parent=above, **command.context_settings)
    for sub in getattr(command, "commands", {}).values():
        _without_types(sub, context)
    for param in (*command.params, command.get_help_option(context)):
        if getattr(param, "is_flag", False):
            param.metavar = ""
        if param.param_type_name == "argument":
            param.display_type_rich = lambda ctx: None
    return command


def _shorten_help(command: Any, *, everything: bool) -> None:
    """Leave out of the help how the command is run, unless `everything` is asked for.

    The help names one of a switch and its opposite: the one that changes something.
    """
    for sub in getattr(command, "commands", {}).values():
        _shorten_help(sub, everything=everything)
    rare = [param for param in command.params if getattr(param, "rich_help_panel", "") == RUN_PANEL]
    rare = [param for param in rare if param.name not in OFTEN_USED]
    for param in command.params:
        if param.name == "help_all":
            param.hidden = everything or len(rare) <= FEW
        if getattr(param, "secondary_opts", None) and param.default:
            param.opts, param.secondary_opts, param.show_default = param.secondary_opts, [], False
        if len(rare) > FEW and not everything:
            param.hidden = param.hidden or param in rare
            param.rich_help_panel = None if param.name in OFTEN_USED else param.rich_help_panel
    if len(rare) > FEW and not everything:
        names = ", ".join(param.opts[0] for param in rare[:NUM_NAMED])
        command.epilog = f"How the command is run ({names}, …): {ALL_OF_HELP}"


def _be(param: typer.CallbackParam, is_asked: bool) -> None:
    if is_asked:
        loudness.said[str(param.name)] = True


def _loud(*names: str, help: str) -> Any:
    panel = "How much is said"
    return typer.Option(
        False, *names, help=help, expose_value=False, is_eager=True, callback=_be, rich_help_panel=panel
    )


def _loudness(
    quiet: bool = _loud("--quiet", "-q", help="Only the answer and errors."),
    verbose: bool = _loud("--verbose", "-v", help="Also what reports leave out."),
    plain: bool = _loud("--plain", help="Sentences alone, for a screen reader."),
    help_all: bool = _loud(ALL_OF_HELP, help="Show the help with all options."),
) -> None:
    """Apply the options that every subcommand has. `main` puts --help in place of --help-all."""


def _with_loudness(command: Any) -> Any:
    """Give `--quiet`, `--verbose` and `--plain` to `command` and to all its subcommands."""
    app = typer.Typer(add_completion=False)
    app.command()(_loudness)
    params, waiting = typer.main.get_command(app).params, [command]
    while waiting:
        one = waiting.pop()
        one.params.extend(params)
        waiting.extend(getattr(one, "commands", {}).values())
    return command


def _project_defaults(parser: Any, ours: Sequence[str]) -> dict[str, Any] | None:
    """Return the project's defaults for the command line `ours`, and print which defaults are used."""
    if set(ours) & {"--help", "-h", "--version", "-V"}:
        return None
    from dynotune.cli import answers, defaults

    found, told = defaults.of_project(Path.cwd(), parser, ours)
    if told and not set(ours) & {"--quiet", "-q"}:
        answers.say(told)
    return found


def with_command() -> type[Any]:
    """Return a class for subcommands that take the user's command, so that their usage line shows `--
    COMMAND`."""
    from typer.core import TyperCommand

    class WithCommand(TyperCommand):
        def collect_usage_pieces(self, ctx: Any) -> list[str]:
            return [*super().collect_usage_pieces(ctx), "-- COMMAND"]

    return WithCommand


def _named_only() -> None:
    """Do nothing, in place of a subcommand that was not requested and so is not imported."""


def _version(asked: bool) -> None:
    if asked:
        from dynotune import __version__

        print(f"dynotune {__version__}")
        raise typer.Exit


def _options(
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(
        False, "--version", "-V", is_eager=True, callback=_version, help="Show the version and exit."
    ),
) -> None:
    """Apply the options that stand before a subcommand."""


def _explain(error: Exception) -> None:
    """Print an error on stderr: what happened, why, and what to do next."""
    from rich.text import Text

    from dynotune.report import console
    from dynotune.text import quoting

    screen = console(stderr=True, soft_wrap=True, is_error=True)
    if not isinstance(error, DynotuneError):
        what = _said(f"{type(error).__name__}: {error}")
        screen.print(Text.assemble(("dynotune made a mistake: ", "bold red"), what))
        screen.print(Text("Run it again with --debug and report what it prints.", style="dim"))
        return
    screen.print(Text.assemble(("error: ", "bold red"), _said(error.message)))
    if isinstance(error, CommandFailed):
        for line in error.last_lines:
            screen.print(Text(f"{quoting.OF_PROGRAM}{_said(line)}", style="dim"))
    if error.hint:
        screen.print(Text.assemble(("next: ", "bold"), _said(error.hint)))


def _said(text: str) -> str:
    """Return the text of an error on one line and without secrets."""
    from dynotune.schema.redaction import redacted
    from dynotune.text import words

    return words.plain(redacted(text), longest=LONGEST_MESSAGE)
