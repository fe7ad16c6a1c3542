"""`dynotune startup warm`, `pack` and `unpack`: fill compile caches, pack them into a file, and unpack them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dynotune.cli import answers, options
from dynotune.cli.options import Json, Python, check_json, environment, num_bytes, number, option, runs_a_command
from dynotune.schema.caches import TITLES
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.run import RunSpec

if TYPE_CHECKING:
    from dynotune.schema.cache_pack import Difference

Caches = Annotated[Path | None, option("startup_caches_caches")]


@runs_a_command("ready_pattern", "run_to_end")
def warm(
    context: typer.Context,
    caches: Caches = None,
    max_runs: Annotated[int, option("startup_caches_max_runs", **number(1))] = 5,
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
    options.check_run(context, run)
    variables: dict[str, str] = {}
    if caches is not None:
        folder = caches.expanduser().absolute()
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
        typer.Option(metavar="CACHE", help=f"Leave a cache out: {', '.join(TITLES)}; repeat for more."),
    ] = None,
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
    env = environment()
    unknown = next((name for name in without or [] if name not in TITLES), None)
    if unknown is not None:
        raise UsageError(f"There is no cache {unknown}.", hint=f"--without takes {', '.join(TITLES)}.")
    command = context.find_root().obj or []
    if caches is not None:
        folder = caches.expanduser().absolute()
        if not folder.is_dir():
            raise UsageError(
                f"There is no folder {folder}.", hint=f"dynotune startup warm --caches {caches} -- COMMAND fills it."
            )
        env |= {**(places.read_variables(folder) or {}), **places.variables(folder)}
    conditions = cache_conditions.here(env, probe.interpreter_asked(python, command, env), Path.cwd())
    found = places.places(env, Path.cwd())
    left = {name for name in TITLES if name in (without or [])}
    # Precompiled headers are never below --caches, and where they are not used another program left them.
    left |= {place.name for place in found if place.name == "headers" and (place.off or caches is not None)}
    with console(stderr=True).status("Packing …"):
        packed = cache_pack.pack(file, found, conditions, command=command, env=env, without=left)
    variables = {**places.variables(Path(reports.FOLDER)), **packed.manifest.variables}
    answers.show(lambda kept: reports.packed_report(kept, variables), packed, json, soft_wrap=True)


def unpack(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A pack that `dynotune startup pack` wrote.")],
    sha256: Annotated[str | None, option("startup_caches_sha256", "--sha256")] = None,
    trust: Annotated[bool, option("startup_caches_trust", "--trust")] = False,
    caches: Caches = None,
    force: Annotated[bool, option("startup_caches_force", "--force")] = False,
    max_size: Annotated[str, option("startup_caches_max_size")] = "64G",
    python: Python = None,
    json: Json = None,
) -> None:
    from dynotune import probe
    from dynotune.launch.caches import conditions as cache_conditions
    from dynotune.launch.caches import contents as places
    from dynotune.launch.caches import unpack as cache_unpack
    from dynotune.report import console
    from dynotune.report.startup import caches as reports

    check_json(json)
    if sha256 is None and not trust:
        raise UsageError(
            f"Nothing says that {file} is to be trusted. {reports.DANGER}",
            hint="Give the digest that pack printed with --sha256, or --trust if you made it or know who did.",
        )
    most_bytes = num_bytes(max_size, "--max-size")
    env = environment()
    with cache_unpack.opened(file) as stream:
        if sha256 is not None:
            cache_unpack.refuse_digest(stream, sha256, str(file))
        manifest = cache_unpack.read_manifest(stream, str(file))
        now = cache_conditions.here(env, probe.interpreter_asked(python, context.find_root().obj, env), Path.cwd())
        differences = cache_conditions.differences(manifest, now)
        _refuse(differences, str(file), force)
        folder = None if caches is None else caches.expanduser().absolute()
        variables = {} if folder is None else places.environment(folder)
        with console(stderr=True).status("Unpacking …"):
            unpacked = cache_unpack.unpack(
                stream,
                str(file),
                places.places({**env, **variables}, Path.cwd()),
                most_bytes=most_bytes or cache_unpack.MOST_BYTES,
                below=str(folder or ""),
                variables=variables,
                differences=differences,
            )
    if folder is not None:
        places.write_variables(folder, unpacked.variables)
    trusted_by = "--trust" if sha256 is None else f"--sha256 {sha256}"
    answers.show(lambda kept: reports.unpacked_report(kept, trusted_by=trusted_by), unpacked, json, soft_wrap=True)


def _refuse(differences: list[Difference], name: str, force: bool) -> None:
    """Refuse a pack that would crash here and, unless forced, a pack that would be useless here.

    Raises CannotRunHere, whose message lists every reason.
    """
    dangerous = [each for each in differences if each.severity == "dangerous"]
    others = [each for each in differences if each.severity in ("useless", "unknown")]
    refused = dangerous or ([] if force else others)
    if not refused:
        return
    reasons = "; ".join(f"{each.what}: packed with {each.packed}, here {each.here} ({each.why})" for each in refused)
    if dangerous:
        hint = "Pack them on a processor like this one; or pack there without inductor's C++ kernels."
    elif all(each.severity == "unknown" for each in refused):
        hint = "Where they are to be used, it can be compared. --force takes them all the same."
    else:
        hint = "Fill them here with dynotune startup warm. --force takes them all the same; they are compiled anew."
    raise CannotRunHere(f"{name} was made for another machine. {reasons}.", hint=hint)
