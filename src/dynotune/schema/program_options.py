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
