"""`dynotune startup`: JIT and compile caches, and the time to the first step."""

from __future__ import annotations

import typer

from dynotune.cli import startup_caches, startup_scan, startup_time, with_command

startup = typer.Typer(no_args_is_help=True, help="JIT and compile caches, and the time to the first step.")

startup.command(help=startup_scan.HELP)(startup_scan.scan)
startup.command(cls=with_command(), help=startup_time.HELP)(startup_time.time)
startup.command(cls=with_command(), help=startup_caches.WARM_HELP)(startup_caches.warm)
startup.command(cls=with_command(), help=startup_caches.PACK_HELP)(startup_caches.pack)
startup.command(cls=with_command(), help=startup_caches.UNPACK_HELP)(startup_caches.unpack)
