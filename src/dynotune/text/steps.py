"""Say in words what a step of a program is."""

from collections.abc import Sequence

from dynotune.schema.cycle import CyclePart


def description(parts: Sequence[CyclePart], num_parts: int) -> str:
    """Write `draw DataLoader, 3 × call Net, step SGD`.

    Args:
        parts: the first parts of the cycle that is a step; empty if the program marks its steps.
        num_parts: number of all parts.
    """
    if not parts:
        return "marked by the program"
    named = [
        f"{part.kind} {part.name}" if part.num == 1 else f"{part.num} × {part.kind} {part.name}"
        for part in parts
    ]
    return ", ".join([*named, "…"] if num_parts > len(parts) else named)
