"""Write the heading of a recipe's patch, which `git apply` skips.

Each line is a comment: git would read a line of the recipe's own text that looks like a diff's as one.
"""

from collections.abc import Mapping, Sequence

from dynotune.report.export import about
from dynotune.schema.recipe import Recipe
from dynotune.schema.toml_text import commented
from dynotune.text import words

_FACTS = ("gpu", "driver", "torch", "cpu")


def patch_heading(
    recipe: Recipe,
    name: str,
    patch: str,
    command: Sequence[str],
    places: Mapping[str, Sequence[str]],
    refused: Mapping[str, str],
) -> str:
    """Return the lines above the diff: gain, settings with their places, and how to apply, undo and prove it.

    Args:
        name: of the recipe's file. `patch`: path of the patch.
        command: without secrets; may be empty.
        places: setting to what was written where. `refused`: setting to the reason why it is left out.
    """
    head = recipe.recipe
    num = len(places) + len(refused)
    facts = {fact: str(recipe.facts[fact]) for fact in _FACTS if fact in recipe.facts}
    shown = words.command([patch])
    lines = [f"{words.plain(name)} as a patch: {len(places)} of {num} settings."]
    lines += [
        f"{line} (all of the recipe's settings, by dynotune run)" if line.startswith("Proved") else line
        for line in about(head.speedup, head.ci, head.objective, facts)
    ]
    lines += [
        "",
        f"Apply:  git apply {shown}",
        f"Undo:   git apply -R {shown}",
        f"Prove:  dynotune compare --baseline git.ref=HEAD -- {words.command(command) or 'COMMAND'}",
        "        after the patch was applied, in a repository whose HEAD has the files without it",
    ]
    for setting, written in places.items():
        lines += ["", f"{words.plain(setting)}:", *(f"    {words.plain(place)}" for place in written)]
    if refused:
        lines += ["", "Not in the patch:"]
        lines += [f"    {words.plain(setting)}: {words.plain(why)}" for setting, why in refused.items()]
    return "\n".join(commented(lines)) + "\n\n"
