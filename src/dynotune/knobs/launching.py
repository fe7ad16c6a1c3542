"""What is started: the command's own arguments, the revision of its code, and the Python that runs it."""

from __future__ import annotations

from dynotune.schema.errors import UsageError
from dynotune.schema.knob import Argument, Interpreter, Knob, Revision

_SWITCHED_NEVER = "it is part of how the command is started"


def for_argument(name: str) -> Knob:
    """The knob of the placeholder `{name}`.

    Raises:
        UsageError: no placeholder can be called so.
    """
    if not name.isidentifier() or name == "run_dir":
        raise UsageError(
            f"{name!r} cannot name a placeholder of the command.",
            hint="Write arg.NAME=value, with {NAME} in the command.",
        )
    return Knob(
        id=f"arg.{name}",
        site=Argument(name),
        type="str",
        default="as the command says; what is compared needs a value for each arm",
        when="process",
        effect="semantics",
        not_switched=_SWITCHED_NEVER,
        doc=f"Fills the placeholder {{{name}}} of the command: python train.py --option {{{name}}}.",
        hurts="Times are divided by samples, so batch sizes compare fairly; what training learns is not compared.",
        source="https://docs.python.org/3/library/argparse.html",
    )


KNOBS = (
    for_argument("NAME"),
    Knob(
        id="git.ref",
        site=Revision(),
        type="str",
        default="the working tree as it is",
        when="process",
        effect="semantics",
        not_switched=_SWITCHED_NEVER,
        doc="The command sees its repository at this branch, tag or commit. The working tree itself is not touched.",
        hurts="What git does not track (data, builds in place) is the same in both arms.",
        source="https://git-scm.com/docs/git-diff",
    ),
    Knob(
        id="python",
        site=Interpreter(),
        type="str",
        default="the one that the command names",
        when="process",
        effect="semantics",
        not_switched=_SWITCHED_NEVER,
        doc="Path of a Python that runs the command in place of its own, with the packages that are installed there.",
        source="https://docs.python.org/3/library/venv.html",
    ),
)
