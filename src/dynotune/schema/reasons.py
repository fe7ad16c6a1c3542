"""Reasons on which dynotune acts, as codes; `text.reasons` has their sentences."""

import enum


class Reason(enum.StrEnum):
    """Why there is no result. The agent writes the values, so a value must never change."""

    OTHER = ""
    """A reason on which nobody acts; the words beside it are the whole reason."""

    HAS_ALREADY = "has-already"
    """The arm would change nothing, because the program has its settings already."""

    NO_TORCH = "no-torch"
    """The program did not import torch."""

    PROGRAM_PROFILES = "program-profiles"
    """The program uses torch's profiler itself; words: the place in the program, or empty."""

    OTHER_PROFILER = "other-profiler"
    """Another profiler watches the program; words: the name of that profiler."""

    NO_DEVICE_WORK = "no-device-work"
    """No work of the GPU was recorded, though the program uses it."""

    PROGRAM_ENDED = "program-ended"
    """The program ended before the task was done; words: what the task had not yet done."""
