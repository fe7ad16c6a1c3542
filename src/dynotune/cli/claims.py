"""`dynotune claims`: list advice on speed and memory, and test it on this machine."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dynotune import api
from dynotune.cli import answers, run_options
from dynotune.cli.option_values import one_of
from dynotune.cli.options import Budget, Json, Python, check_json, option
from dynotune.cli.run_options import RunDir
from dynotune.schema.claims import SETTLED, Bundle, Claim
from dynotune.schema.errors import UsageError

claims = typer.Typer(
    no_args_is_help=True,
    help="Advice on speed and memory: what is true of it, and tests of it on this machine.",
)


@claims.command("list", help="All claims, one a line. For example: dynotune claims list --filter pinned")
def list_(filter: Annotated[str, option("claims_filter")] = "", json: Json = None) -> None:
    from dynotune.claims import all_claims
    from dynotune.report import claims as reports
    from dynotune.report import console
    from dynotune.schema import document

    check_json(json)
    found = [claim for claim in all_claims() if filter.lower() in document.encode(claim).decode().lower()]
    if json is not None:
        answers.write_json(found, json)
    if json != "-":
        console().print(reports.claims_table(found))


@claims.command(help="What a claim says, what is true of it, and how it is tested.")
def show(id: Annotated[str, typer.Argument(metavar="ID", help="A claim.")], json: Json = None) -> None:
    from dynotune.claims import named
    from dynotune.report import claims as reports

    check_json(json)
    answers.show(reports.claim_report, named([id])[0], json)


@claims.command(
    help="""Test claims on this machine.

    A check takes seconds, a comparison of two arms some minutes. With --output the evidence is saved after
    each claim, and claims that the file already has are not tested again: dynotune claims run --all --output
    FILE
    """
)
def run(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Claims.")] = None,
    all: Annotated[bool, option("claims_all", "--all")] = False,
    budget: Budget = None,
    python: Python = None,
    output: Annotated[Path | None, option("claims_output")] = None,
    baseline: Annotated[Path | None, option("claims_baseline")] = None,
    fail_on: Annotated[str | None, option("claims_fail_on", callback=one_of("flipped"))] = None,
    run_dir: RunDir = None,
    json: Json = None,
) -> None:
    from dynotune.claims import all_claims, flipped, named, read
    from dynotune.report import claims as reports

    check_json(json)
    api.check_output(output, "--output")
    if bool(ids) == all:
        raise UsageError("Name claims, or give --all.", hint="dynotune claims list shows all.")
    if fail_on and baseline is None:
        raise UsageError(
            "--fail-on flipped needs verdicts to compare with.", hint="Name a bundle with --baseline."
        )
    kept = read(baseline)[0].evidence if baseline is not None else []
    chosen = all_claims() if all else named(ids or [])
    bundle = _tested(chosen, budget, python, output, run_options.runs_folder(run_dir))
    answers.show(reports.evidence_table, bundle, json)
    changed = flipped(bundle, kept)
    for before, now in changed:
        answers.say(f"flipped: {now.id} was {before.verdict}, and is {now.verdict}: {now.seen}")
    if fail_on and changed:
        raise typer.Exit(1)


def _tested(
    chosen: Sequence[Claim], budget_s: float | None, python: str | None, output: Path | None, base: Path
) -> Bundle:
    """Test the claims until the budget is spent, quick ones first; earlier evidence is kept."""
    from dynotune.claims import new_bundle, program_hash, read, with_evidence, write
    from dynotune.claims import run as run_claim
    from dynotune.probe import interpreter_asked
    from dynotune.report import Progress, console
    from dynotune.schema import private
    from dynotune.schema.run import RunSpec

    end_s = None if budget_s is None else time.monotonic() + budget_s
    env = run_options.environment()
    folder = private.folder(private.state_folder(), "claims")
    spec = RunSpec(
        command=[str(interpreter_asked(python, None, env))], cwd=folder, base=base, env=env, seed=0
    )
    bundle = new_bundle(spec)
    if output is not None and output.exists():
        before, _ = read(output)
        if before.facts != bundle.facts:
            raise UsageError(
                f"{output} was written on another machine or in another environment.",
                hint="Name another file with --output.",
            )
        bundle = before
    known = {
        (one.id, one.program) for one in bundle.evidence if one.verdict in (*SETTLED, "not testable here")
    }
    untested = [claim for claim in chosen if (claim.id, program_hash(claim)) not in known]
    waiting = sorted(untested, key=lambda claim: claim.compare is not None)
    with Progress(console(stderr=True)) as progress:
        for number, claim in enumerate(waiting):
            left_s = None if end_s is None else end_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                answers.say(
                    f"The budget is spent, and {len(waiting) - number} claims are left: repeat with the "
                    "same --output to go on."
                )
                break
            progress.running(f"{claim.id}, {number + 1} of {len(waiting)}", left_s=left_s)
            # Checks come first. A comparison gets what it needs: parts of equal size are too small for all of
            # them.
            bundle = with_evidence(bundle, run_claim(claim, spec, progress, left_s))
            if output is not None:
                write(output, bundle)
    return bundle


@claims.command(help="Check a bundle: its checksum, and whether its verdicts follow from its values.")
def verify(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="Evidence, as `dynotune claims run` writes it.")
    ],
    json: Json = None,
) -> None:
    from dynotune.claims import read
    from dynotune.report import claims as reports

    check_json(json)
    found, notes = read(bundle)
    for note in notes:
        answers.say(f"not judged again: {note}")
    answers.show(reports.evidence_table, found, json)
