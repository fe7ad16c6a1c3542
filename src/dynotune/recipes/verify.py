"""Whether a new comparison meets what a recipe states."""

from dynotune.schema.comparison import Comparison
from dynotune.schema.recipe import Outcome, Recipe
from dynotune.text import words


def judge_recipe(recipe: Recipe, comparison: Comparison, *, is_whole: bool = True) -> tuple[Outcome, str]:
    """Judge `met`, `not-met` or `undecided`, and say why.

    Without some of its settings (`is_whole` is false) a recipe may still be met, but not refuted.

    Met: better again, and by no less than the lower end of the stated interval. Of two honest measurements, each with
    its own error, the second lies above the first one's lower end in 19 of 20 cases or more; an interval that merely
    reaches it could be so wide that it says nothing. Not met: not better, or the new interval lies below the stated
    one. Else undecided: more pairs, or a quieter machine, would tell.
    """
    outcome, reason = _judge(recipe, comparison)
    if outcome != "met" and comparison.verdict == "faster" and recipe.recipe.within:
        reason += " The recipe was proved on steps alone; runs also hold what lies between them, such as validating."
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
