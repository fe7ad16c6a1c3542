"""`dynotune startup`: JIT and compile caches, and the time to the first step."""

from __future__ import annotations

import typer

from dynotune.cli.startup_scan import scan

startup = typer.Typer(
    no_args_is_help=True, help="What is compiled when a program starts, what that costs, and how to keep it."
)
startup.command()(scan)
