"""`dynotune startup`: JIT and compile caches, and the time to the first step."""

from __future__ import annotations

import typer

from dynotune.cli import with_command
from dynotune.cli.startup_caches import pack, unpack, warm
from dynotune.cli.startup_scan import scan
from dynotune.cli.startup_time import time

startup = typer.Typer(no_args_is_help=True, help="JIT and compile caches, and the time to the first step.")

startup.command()(scan)
startup.command(cls=with_command())(time)
startup.command(cls=with_command())(warm)
startup.command(cls=with_command())(pack)
startup.command(cls=with_command())(unpack)
