"""How a process ended, in words. Uses the standard library alone, as all that a bare interpreter must
import."""


def ending(exit_code: int) -> str:
    """Write how a process ended, to follow "ended": `with exit code 3`, or `by signal 9` for -9."""
    return f"with exit code {exit_code}" if exit_code >= 0 else f"by signal {-exit_code}"
