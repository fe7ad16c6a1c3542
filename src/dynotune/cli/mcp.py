"""`dynotune mcp`: offer the subcommands as tools to coding agents."""

from pathlib import Path
from typing import Annotated

from dynotune.cli.answers import say
from dynotune.cli.option_values import one_of, seconds_of
from dynotune.cli.options import option
from dynotune.schema.errors import UsageError

LONGEST_S = 1800.0


def mcp(
    root: Annotated[Path, option("mcp_root")] = Path(),
    allow_run: Annotated[bool, option("mcp_allow_run", "--allow-run")] = False,
    longest: Annotated[float | None, option("mcp_longest", parser=str, callback=seconds_of)] = None,
    setup: Annotated[str | None, option("mcp_setup", callback=one_of("claude", "codex", "cursor"))] = None,
    dry_run: Annotated[bool, option("mcp_dry_run", "--dry-run")] = False,
    skill: Annotated[bool, option("mcp_skill", "--skill")] = False,
) -> None:
    from dynotune import mcp as agents

    if dry_run and setup is None:
        raise UsageError("--dry-run is about a setup, and there is none.", hint="Add --setup claude")
    if setup is not None:
        _set_up(setup, root, allow_run=allow_run, longest_s=longest, dry_run=dry_run)
        return
    if skill:
        print(agents.skill(), end="")
        return
    agents.serve(root, allow_run=allow_run, longest_s=LONGEST_S if longest is None else longest)


def _set_up(host: str, root: Path, *, allow_run: bool, longest_s: float | None, dry_run: bool) -> None:
    """Enter the server into a host's configuration, or show the file as it would become."""
    from dynotune import mcp as agents

    found = agents.setup(host, root, allow_run=allow_run, longest_s=longest_s)
    if dry_run:
        say(f"{found.file}, as it would be:")
        print(found.text, end="")
    elif found.text == found.before:
        say(f"{found.file} has the server already.")
    else:
        found.write()
        say(f"Written: {found.file}. Start {host} again, and it has dynotune's tools.")
    if not allow_run:
        say("The server only reads files. --allow-run lets the agent start commands.")
