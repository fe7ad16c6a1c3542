"""Serve dynotune to coding agents: subcommands as tools of the Model Context Protocol, and a page on them."""

from pathlib import Path

from dynotune.mcp.hosts import setup

__all__ = ["serve", "setup", "skill"]


def skill() -> str:
    """Return the page that teaches an agent to use dynotune, as Markdown."""
    return Path(__file__).with_name("SKILL.md").read_text(encoding="utf-8")


def serve(root: Path, *, allow_run: bool, longest_s: float) -> None:
    """Serve on standard input and output until they are closed.

    Args:
        root: the folder in and below which commands run and files are read, nowhere else.
        allow_run: let the agent start the user's commands.
        longest_s: most time of a job, in seconds; a longer budget is refused.

    Raises:
        CannotRunHere: if the protocol's library is not installed.
        UsageError: if the root is not a folder.
    """
    from dynotune.schema.errors import CannotRunHere, UsageError

    if not root.is_dir():
        raise UsageError(f"There is no folder {root}.", hint="Name one with --root.")
    try:
        from dynotune.mcp.server import server
    except ImportError as error:
        hint = "Install it with dynotune: pip install 'dynotune[mcp]'"
        raise CannotRunHere(f"The protocol's library is missing: {error.name}.", hint=hint) from error
    try:
        server(root, allow_run=allow_run, longest_s=longest_s).run("stdio")
    except* BrokenPipeError:
        pass  # the program that runs the coding agent has ended, so nobody reads further answers
