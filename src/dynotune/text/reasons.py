"""Sentences of the reasons on which dynotune acts."""

from dynotune.schema.reasons import Reason


def sentence(reason: Reason, words: str = "") -> str:
    """Write a reason as a clause without a full stop.

    `words`: what the event says beside the reason; the whole reason if it has no code.
    """
    match reason:
        case Reason.OTHER:
            return words
        case Reason.HAS_ALREADY:
            return "the program has it already"
        case Reason.NO_TORCH:
            return "the program did not import torch"
        case Reason.PROGRAM_PROFILES:
            return "the program uses torch's profiler itself" + (f" ({words})" if words else "")
        case Reason.OTHER_PROFILER:
            return f"another profiler watches the program ({words})"
        case Reason.NO_DEVICE_WORK:
            return "no work of the GPU was recorded, though the program uses it"
        case Reason.PROGRAM_ENDED:
            return f"the program ended before {words}"
