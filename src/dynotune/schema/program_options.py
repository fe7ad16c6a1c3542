"""Options of a program's own command line."""

from typing import Literal

import msgspec

OptionParser = Literal["argparse", "click", "typer", "hydra", "omegaconf"]


class ProgramOption(msgspec.Struct, frozen=True, kw_only=True):
    """An option that the program itself parses.

    Args:
        name: how the program spells it: `--workers`, or `trainer.workers` where a configuration is
            overridden.
        value, default: as text; None if there is none. Options that are named as secrets are not recorded.
        const: the value if the option is given without one; None if the option takes a value.
        flags: all spellings. choices: the values that it takes; [] if the parser does not restrict them.
        parser: what parsed it.
    """

    name: str
    value: str | None = None
    default: str | None = None
    const: str | None = None
    flags: list[str] = []
    choices: list[str] = []
    help: str = ""
    parser: OptionParser = "argparse"


class OptionMeaning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an option of a program is recognised that does what a setting does, or what a finding asks for.

    Args:
        kind: a `number` must be what was observed, and the candidate's value takes its place. A `switch` must
            not yet be `on` as the remedy asks. `larger` is a number to raise.
        names: names in lower case, with underscores, and without what stands before the last dot.
        choice_names: names of an option that chooses among texts; the first of `wanted` that is among the
            option's own choices is given.
    """

    kind: Literal["number", "switch", "larger"]
    names: tuple[str, ...]
    on: bool = True
    choice_names: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()
