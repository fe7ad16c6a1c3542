"""Write the comparison that proves what an option of the program itself gives."""

import re
from collections.abc import Sequence

from dynotune.schema.diagnosis import OwnOption
from dynotune.text import words

_NOT_IN_A_NAME = re.compile(r"\W")


def comparison(option: OwnOption, command: Sequence[str]) -> list[str]:
    """Return the words of `dynotune compare` for the option; [] if the option has no value to give.

    The option stands at the end of the command, since parsers take the last value.
    """
    if not option.words or option.value is None:
        return []
    name = _NOT_IN_A_NAME.sub("_", option.name.lstrip("-").rpartition(".")[2])
    if len(option.words) == 1 and "=" not in option.words[0]:  # a switch
        arm, baseline, given = option.words[0], "", [f"{{{name}}}"]
    else:
        arm, baseline = option.value, option.now or ""
        given = [word.replace(option.value, f"{{{name}}}") for word in option.words[-1:]]
        given = [*option.words[:-1], *given]
        if not baseline:
            return []
    rest = _without(option.name, command) if len(option.words) == 2 else list(command)
    arguments = [f"arg.{name}={arm}", "--baseline", f"arg.{name}={baseline}", "--", *rest, *given]
    return ["dynotune", "compare", *words.shell(arguments)]


def _without(name: str, command: Sequence[str]) -> list[str]:
    """Return the command without the option and its value."""
    rest, skip = list[str](), False
    for word in command:
        if skip or word.startswith(f"{name}="):
            skip = False
        elif word == name:
            skip = True
        else:
            rest.append(word)
    return rest
