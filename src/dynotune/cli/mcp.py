"""`dynotune mcp`: offer the subcommands as tools to coding agents."""

from pathlib import Path
from typing import Annotated

from dynotune.cli.options import option


def mcp(
    root: Annotated[Path, option("mcp_root")] = Path(),
    allow_run: Annotated[bool, option("mcp_allow_run", "--allow-run")] = False,
    skill: Annotated[bool, option("mcp_skill", "--skill")] = False,
) -> None:
    from dynotune import mcp as agents

    if skill:
        print(agents.skill(), end="")
        return
    agents.serve(root, allow_run=allow_run)
