"""`dynotune mcp`: the subcommands as tools for coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="Work here and below, nowhere else.")] = Path(),
    allow_run: Annotated[
        bool, typer.Option("--allow-run", help="Commands may be started; without it, files are read alone.")
    ] = False,
    skill: Annotated[
        bool, typer.Option("--skill", help="Print a page that teaches an agent when to use what, and end.")
    ] = False,
) -> None:
    from dynotune import mcp as agents

    if skill:
        print(agents.skill(), end="")
        return
    agents.serve(root, allow_run=allow_run)
