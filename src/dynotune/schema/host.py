"""What the host does during the steps: garbage collections, and the lines at which threads were seen."""

import msgspec

from dynotune.schema.loader import SamplePart


class Collections(msgspec.Struct, frozen=True, kw_only=True, tag="collections"):
    """Python's garbage collections within the window; the oldest generation is the expensive one.

    Args:
        asked_s: seconds of the collections that the program asked for by `gc.collect()`; 0 in older records.
        asked_at: the place in the user's code that asked for most of that time; "" without such a place.
    """

    num: int
    num_oldest: int
    total_s: float
    longest_s: float
    num_objects: int | None = None
    asked_s: float = 0.0
    asked_at: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A source line of the user's own code at which the sampler saw a thread.

    Args:
        function: function with file and line, `train.py(31): step`; a package's if no user function is on the
            stack.
        text: the source line's text, without secrets; "" if the file does not exist.
        callee: the library function that the line calls; "" if the line itself runs, or calls C code.
        leaf: the innermost function that ran, if different from `function`.
        inside: "loader": a DataLoader called this line; "event-loop": the loop waits, and a task awaits at
            this line.
        num: number of times that the sampler saw the line.
        cpu_s: the thread's processor seconds from the sample before each of these samples, summed; None if
            unmeasured.
        least_cpu_s: the sum of the lesser of the processor times before and after each sample; None in older
            records.
    """

    function: str
    text: str = ""
    callee: str = ""
    leaf: str = ""
    inside: str = ""
    num: int
    cpu_s: float | None = None
    least_cpu_s: float | None = None


class Thread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that the sampler saw in the timed window.

    `cpu_s`: the thread's processor seconds in the window; None if the kernel does not count them. `parts`:
    the thread's time to make samples by kind of work; for the step thread, the work for a loader.
    """

    name: str = ""
    of_steps: bool = False
    num: int
    cpu_s: float | None
    lines: list[Line] = []
    parts: list[SamplePart] = []


class StackLine(msgspec.Struct, frozen=True, kw_only=True):
    """A source line, outside torch and the standard library, on the stack of the thread that runs the steps.

    `callee`: the next line on the stack that was seen most often, as `function`; "" if the line itself ran,
    or called torch or the standard library. `num`: number of samples with the line on the stack.
    """

    function: str
    text: str = ""
    callee: str = ""
    num: int
