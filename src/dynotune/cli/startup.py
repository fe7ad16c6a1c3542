"""`dynotune startup`: JIT and compile caches, and the time to the first step."""

from __future__ import annotations

import typer

from dynotune.cli import with_command
from dynotune.cli.startup_caches import pack, unpack, warm
from dynotune.cli.startup_scan import scan

startup = typer.Typer(
    no_args_is_help=True, help="What a start compiles: which GPU code is there, fill the caches, take them along."
)

startup.command(cls=with_command())(scan)
startup.command(cls=with_command())(warm)
startup.command(cls=with_command())(pack)
startup.command(cls=with_command())(unpack)
