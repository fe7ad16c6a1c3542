"""`dynotune startup`: show GPU code, fill, pack and unpack JIT and compile caches, time the first step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dynotune.cli import HELP_OF, answers, option_values, resumption, run_options, with_command
from dynotune.cli.option_values import number
from dynotune.cli.options import Budget, Json, Margin, Python, Resume, check_json, option
from dynotune.schema.caches import TITLES
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.home import expanded
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.probe.gpu_code import code_places
    from dynotune.schema.cache_pack import Difference
    from dynotune.schema.startup import StartChange

startup = typer.Typer(no_args_is_help=True, help="JIT and compile caches, and the time to the first step.")

GATE_BLOCKS = 4
"""Most blocks of a gate that names no number."""
UNDECIDED = 5
"""Exit code of a gate whose starts did not tell."""
CACHES = tuple(name for name in TITLES if name != "packages")
"""Caches that can be left out of a pack."""
GATES = ("partial", "jit", "cannot")
"""Verdicts on which the option can exit, the mildest first; each includes the worse verdicts."""


def scan(
    context: typer.Context,
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATHS", help="Files and folders.")] = None,
    python: Annotated[str | None, option("startup_python")] = None,
    compute_capability: Annotated[list[str] | None, option("startup_compute_capability")] = None,
    fail_on: Annotated[
        str | None, option("startup_fail_on", metavar="|".join(GATES), callback=option_values.one_of(*GATES))
    ] = None,
    timeout: Annotated[
        float | None, option("startup_timeout", parser=str, callback=option_values.seconds_of)
    ] = None,
    every: Annotated[bool, option("startup_every", "--all")] = False,
    json: Json = None,
) -> None:
    from dynotune.probe.gpu_code import device_code, gpu_archs
    from dynotune.report import console
    from dynotune.report.startup import device_code as reports
    from dynotune.schema.device_code import Gpu

    check_json(json)
    asked = dict.fromkeys(gpu_archs.sm_of(text) for text in compute_capability or [])
    named = [Gpu(compute_capability=f"{sm // 10}.{sm % 10}") for sm in asked]
    gpus = named or device_code.gpus_here(run_options.environment())
    if fail_on is not None and not isinstance(gpus, list):
        raise CannotRunHere(
            f"--fail-on {fail_on} needs a GPU to judge for: {gpus.reason}.",
            hint="Name one: --compute-capability 9.0",
        )
    places = _places(paths or [], python, context.find_root().obj)
    with console(stderr=True).status("Reading …") as status:
        found = device_code.scan(
            places,
            gpus,
            deadline_s=device_code.DEADLINE_S if timeout is None else timeout,
            tell=lambda num: status.update(f"Reading … {num:,} files") if num % 100 == 0 else None,
        )
    answers.show(lambda kept: reports.device_code_report(kept, every=every), found, json)
    bad = GATES[GATES.index(fail_on) :] if fail_on is not None else ()
    if any(verdict.verdict in bad for library in found.libraries for verdict in library.verdicts):
        raise typer.Exit(1)


def _places(paths: list[Path], python: str | None, command: list[str] | None) -> code_places.Places:
    """Raises:
    UsageError: a path does not exist, or `--python` is not an interpreter. CannotRunHere: if only a run shows
    which libraries the command loads.
    """
    from dynotune.probe import interpreter_asked
    from dynotune.probe.gpu_code import code_places

    env, cwd = run_options.environment(), Path.cwd()
    places = code_places.Places()
    for path in paths:
        if not path.exists():
            raise UsageError(f"There is no {path}.", hint="Name a file or a folder.")
        places.add(path)
    if python is not None or not (command or paths):
        code_places.of_interpreter(str(interpreter_asked(python, None, env)), places, env, cwd)
    if command:
        found = code_places.of_command(command, places, env, cwd)
        if not isinstance(found, str):
            raise CannotRunHere(
                f"It is not known which libraries {command[0]} loads: {found.reason}.",
                hint="Name the interpreter with --python, or files and folders.",
            )
    return places


@run_options.runs_a_command("ready_pattern", "seed", seed=0)
def time(
    context: typer.Context,
    blocks: Annotated[int | None, option("startup_blocks", **number(2, 12))] = None,
    margin: Margin = 0.05,
    budget: Budget = None,
    against: Annotated[Path | None, option("startup_against")] = None,
    fail_on: Annotated[
        str | None, option("startup_time_fail_on", callback=option_values.one_of("slower"))
    ] = None,
    resume: Resume = None,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.measure.bench import Interrupted
    from dynotune.measure.live import StartRequest
    from dynotune.measure.startup import starting
    from dynotune.report import console, on_terminal
    from dynotune.report.startup import starts
    from dynotune.schema import document
    from dynotune.schema.comparison import MAX_PAIRS
    from dynotune.schema.startup import Startup

    check_json(json)
    folder = None
    if fail_on is not None and against is None and resume is None:
        raise UsageError(
            "--fail-on slower needs a record of earlier starts.",
            hint="Make one by --blocks 6 --json starts.json, and name it: --against starts.json",
        )
    before = None if against is None else document.read(against, Startup)
    if resume is None:
        run_options.check_run(context, run, looks_for_script=True)
    else:
        folder = resumption.resumed_folder(
            context, resume, run.base, starting.FILE, but=("budget", "fail_on")
        )
        if fail_on is not None and document.read(folder / starting.FILE, Startup).against is None:
            raise UsageError(
                f"--fail-on slower needs a record of earlier starts, and {resume} was begun without one.",
                hint="Leave it out, or begin anew with --against starts.json",
            )
    run = msgspec.structs.replace(run, objective="time-to-first-step")
    screen = console(stderr=True)
    watcher = starts.StartProgress(screen)
    with watcher:
        try:
            if folder is None:
                # --fail-on needs an interval, and with a budget, as many blocks as fit are wanted.
                num = blocks or (GATE_BLOCKS if before is not None else MAX_PAIRS if budget else 0)
                request = StartRequest(
                    run=run, max_blocks=num, margin=margin, budget_s=budget, against=before
                )
                timed = starting.time_starts(request, watcher)
            else:
                timed = starting.resume(folder, run, watcher, budget_s=budget)
        except Interrupted as stopped:
            which = resumption.resume_with(stopped.folder)
            screen.print(
                f"Stopped. Finished blocks are kept: dynotune startup time --resume {which}", soft_wrap=True
            )
            raise
    answers.show(on_terminal, timed, json)
    if fail_on is not None:
        raise typer.Exit(gate_code(timed.changes))


def gate_code(changes: Sequence[StartChange]) -> int:
    """Return the exit code of `--fail-on slower`: 1 for slower starts, 5 if some are undecided, else 0."""
    verdicts = {change.verdict for change in changes} or {"undecided"}
    return 1 if "slower" in verdicts else UNDECIDED if "undecided" in verdicts else 0


Caches = Annotated[Path | None, option("startup_caches")]


@run_options.runs_a_command("ready_pattern", "run_to_end")
def warm(
    context: typer.Context,
    caches: Caches = None,
    max_runs: Annotated[int, option("startup_max_runs", **number(1))] = 5,
    json: Json = None,
    *,
    run: RunSpec,
) -> None:
    from dynotune.launch.caches import contents as places
    from dynotune.measure.startup import WarmRequest
    from dynotune.measure.startup import warm as fill
    from dynotune.report import Progress, console
    from dynotune.report.startup import caches as reports

    check_json(json)
    run_options.check_run(context, run, looks_for_script=True)
    variables: dict[str, str] = {}
    if caches is not None:
        folder = expanded(caches)
        variables = places.own_environment(folder, run.env)
        run = msgspec.structs.replace(run, env={**run.env, **variables})
        places.write_variables(folder, variables)
    with Progress(console(stderr=True)) as progress:
        warmed = fill(WarmRequest(run=run, max_runs=max_runs, variables=variables), progress)
    answers.show(reports.warmed_report, warmed, json, soft_wrap=True)
    if warmed.end == "not-warm":
        raise typer.Exit(1)


def pack(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The pack to write.")],
    caches: Caches = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="CACHE", help=f"Leave a cache out: {', '.join(CACHES)}; repeat for more."),
    ] = None,
    package: Annotated[list[Path] | None, option("startup_package")] = None,
    python: Python = None,
    json: Json = None,
) -> None:
    from dynotune import probe
    from dynotune.launch.caches import conditions as cache_conditions
    from dynotune.launch.caches import contents as places
    from dynotune.launch.caches import pack as cache_pack
    from dynotune.report import console
    from dynotune.report.startup import caches as reports

    check_json(json)
    env = run_options.environment()
    unknown = next((name for name in without or [] if name not in CACHES), None)
    if unknown is not None:
        raise UsageError(f"There is no cache {unknown}.", hint=f"--without takes {', '.join(CACHES)}.")
    command = context.find_root().obj or []
    if caches is not None:
        folder = expanded(caches)
        if not folder.is_dir():
            raise UsageError(
                f"There is no folder {folder}.",
                hint=f"dynotune startup warm --caches {caches} -- COMMAND fills it.",
            )
        env |= {**(places.read_variables(folder) or {}), **places.variables(folder)}
    conditions = cache_conditions.here(env, probe.interpreter_asked(python, command, env), Path.cwd())
    found = places.places(env, Path.cwd())
    left = {name for name in CACHES if name in (without or [])}
    # Precompiled headers are never below --caches, and where they are not used another program left them.
    left |= {place.name for place in found if place.name == "headers" and (place.off or caches is not None)}
    with console(stderr=True).status("Packing …"):
        packed = cache_pack.pack(
            file, found, conditions, command=command, env=env, without=left, packages=package or []
        )
    variables = {**places.variables(Path(reports.FOLDER)), **packed.manifest.variables}
    answers.show(lambda kept: reports.packed_report(kept, variables), packed, json, soft_wrap=True)


def unpack(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pack that `dynotune startup pack` wrote.")],
    sha256: Annotated[str | None, option("startup_sha256", "--sha256")] = None,
    trust: Annotated[bool, option("startup_trust", "--trust")] = False,
    caches: Caches = None,
    force: Annotated[bool, option("startup_force", "--force")] = False,
    max_size: Annotated[str, option("startup_max_size")] = "64G",
    python: Python = None,
    json: Json = None,
) -> None:
    from dynotune import probe
    from dynotune.launch.caches import conditions as cache_conditions
    from dynotune.launch.caches import contents as places
    from dynotune.launch.caches import unpack as cache_unpack
    from dynotune.launch.caches import unpacked_origin
    from dynotune.report import console
    from dynotune.report.startup import caches as reports

    check_json(json)
    if sha256 is None and not trust:
        raise UsageError(
            f"Nothing says that {file} is to be trusted. {reports.DANGER}",
            hint="Give --sha256 with the digest that pack printed, or --trust if you know who made the pack.",
        )
    most_bytes = option_values.num_bytes(max_size, "--max-size")
    env = run_options.environment()
    with cache_unpack.opened(file) as stream:
        if sha256 is not None:
            cache_unpack.refuse_digest(stream, sha256, str(file))
        manifest = cache_unpack.read_manifest(stream, str(file))
        now = cache_conditions.here(
            env, probe.interpreter_asked(python, context.find_root().obj, env), Path.cwd()
        )
        differences = cache_conditions.differences(manifest.origin, now)
        _refuse(differences, str(file), force)
        folder = None if caches is None else expanded(caches)
        variables = {} if folder is None else places.environment(folder)
        with console(stderr=True).status("Unpacking …"):
            found = places.places({**env, **variables}, Path.cwd())
            unpacked = cache_unpack.unpack(
                stream,
                str(file),
                found if folder is None else [*found, places.packages(folder)],
                most_bytes=most_bytes or cache_unpack.MOST_BYTES,
                below=str(folder or ""),
                variables=variables,
                differences=differences,
            )
    if folder is not None:
        places.write_variables(folder, unpacked.variables)
        unpacked_origin.write(folder, manifest.origin)
    told = cache_conditions.differing_variables(manifest.origin, {**env, **unpacked.variables})
    if told:
        unpacked = msgspec.structs.replace(unpacked, notes=[*unpacked.notes, *map(reports.of_keys, told)])
    trusted_by = "--trust" if sha256 is None else f"--sha256 {sha256}"
    answers.show(
        lambda kept: reports.unpacked_report(kept, trusted_by=trusted_by), unpacked, json, soft_wrap=True
    )


def _refuse(differences: list[Difference], name: str, force: bool) -> None:
    """Refuse a pack that would crash here and, unless forced, a pack that would be useless here.

    Raises CannotRunHere, whose message lists every reason.
    """
    dangerous = [each for each in differences if each.severity == "dangerous"]
    others = [each for each in differences if each.severity in ("useless", "unknown")]
    refused = dangerous or ([] if force else others)
    if not refused:
        return
    reasons = "; ".join(
        f"{each.what}: packed with {each.packed}, here {each.here} ({each.why})" for each in refused
    )
    if dangerous:
        hint = "Pack them on a processor like this one; or pack there without inductor's C++ kernels."
    elif all(each.severity == "unknown" for each in refused):
        hint = (
            "On the machine where they are to be used, this can be compared. --force packs them all the same."
        )
    else:
        hint = (
            "Fill them here with dynotune startup warm. --force takes them all the same; they are "
            "compiled anew."
        )
    raise CannotRunHere(f"{name} was made for another machine. {reasons}.", hint=hint)


startup.command(help=HELP_OF["startup scan"]["help"])(scan)
startup.command(cls=with_command(), help=HELP_OF["startup time"]["help"])(time)
startup.command(cls=with_command(), help=HELP_OF["startup warm"]["help"])(warm)
startup.command(cls=with_command(), help=HELP_OF["startup pack"]["help"])(pack)
startup.command(cls=with_command(), help=HELP_OF["startup unpack"]["help"])(unpack)
