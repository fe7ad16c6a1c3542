"""Check whether a new comparison confirms the speed-up that a recipe states."""

from dynotune.schema.comparison import Comparison
from dynotune.schema.recipe import Outcome, Recipe
from dynotune.text import words


def judge_recipe(recipe: Recipe, comparison: Comparison, *, is_whole: bool = True) -> tuple[Outcome, str]:
    """Return `met`, `not-met` or `undecided`, and the reason.

    If some settings were left out (`is_whole` is false), the comparison can confirm the recipe but not refute it.

    Met: the command is faster again, by at least the lower end of the stated interval. If two measurements are honest,
    the second speed-up lies above the lower end of the first interval in 19 of 20 cases or more. A new interval that
    only overlaps the stated interval may be too wide to show anything. Not met: the command is not faster, or the new
    interval lies below the stated one. Undecided: all else. More pairs or a quieter machine would decide.
    """
    outcome, reason = _judge(recipe, comparison)
    if outcome != "met" and comparison.verdict == "faster" and recipe.recipe.within:
        reason += " The recipe was proved on steps alone; runs also contain work between steps, such as validation."
    if outcome == "not-met" and not is_whole:
        return "undecided", f"Not all settings of the recipe were applied. {reason}"
    return outcome, reason


def _judge(recipe: Recipe, comparison: Comparison) -> tuple[Outcome, str]:
    if comparison.verdict in ("undecided", None):
        return "undecided", f"Whether it is better was not decided. {comparison.reason}".rstrip()
    if comparison.verdict != "faster" or comparison.speedup is None or comparison.ci is None:
        return "not-met", f"It is not better than the command as it is: {words.verdict(comparison)}."
    head = recipe.recipe
    low = head.ci[0] if head.ci is not None else head.speedup
    if low is None:
        return "met", "It is better; the recipe states no speed-up to compare with."
    if comparison.speedup >= low:
        return "met", f"{words.speedup(comparison)} is not below {words.times(low, digits=3)}."
    now = words.interval(comparison.ci)
    if comparison.ci[1] < low:
        return "not-met", f"The new interval, {now}, lies below {words.times(low, digits=3)}."
    return "undecided", f"It is better, but {words.speedup(comparison)} is below {words.times(low, digits=3)}; {now}."
