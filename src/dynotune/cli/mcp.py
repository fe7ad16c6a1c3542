"""`dynotune mcp`: offer the subcommands as tools to coding agents."""

from pathlib import Path
from typing import Annotated

from dynotune.cli.option_values import seconds_of
from dynotune.cli.options import option

LONGEST_S = 1800.0


def mcp(
    root: Annotated[Path, option("mcp_root")] = Path(),
    allow_run: Annotated[bool, option("mcp_allow_run", "--allow-run")] = False,
    longest: Annotated[float | None, option("mcp_longest", parser=str, callback=seconds_of)] = None,
    skill: Annotated[bool, option("mcp_skill", "--skill")] = False,
) -> None:
    from dynotune import mcp as agents

    if skill:
        print(agents.skill(), end="")
        return
    agents.serve(root, allow_run=allow_run, longest_s=LONGEST_S if longest is None else longest)
