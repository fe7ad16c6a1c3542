"""Show how fast the loader is alone, how fast a step is without the loader, and what a changed loader would reach."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from dynotune.report.layout import table
from dynotune.report.trace_parts import prose, title
from dynotune.schema.diagnosis import Forecast, UpperBound
from dynotune.schema.facts import Unknown
from dynotune.text import words

NOT_ASKED = "not asked for"
NAMES = {"loader": "the loader alone", "step": "one batch, again and again", "both": "both, as a step is"}
LEAST_SHARE = 0.01
"""The smallest gain to report, as a share of a step: two equal runs may differ by less than this."""


def upper_bounds_report(upper_bounds: Sequence[UpperBound] | Unknown) -> list[RenderableType]:
    """Show a row for each part, and the bounds that follow from the parts; [] if no parts were timed."""
    if isinstance(upper_bounds, Unknown):
        return _unknown("Upper bounds", upper_bounds)
    if not upper_bounds:
        return []
    rows = table(":whole", ":number", ":number", ":dim")
    for row in upper_bounds:
        rate = "" if row.samples_per_s is None else f"{words.rate(row.samples_per_s)} samples/s"
        cache = f"page cache {row.page_cache}" if row.page_cache else ""
        detail = "; ".join(words.plain(text) for text in (cache, *row.notes) if text)
        rows.add_row(NAMES[row.part], words.duration(row.step_s), rate, detail)
    bound = bound_in_words(upper_bounds)
    told = [prose(bound)] if bound else []
    return [Group(title("Upper bounds", "what each part reaches alone, a step"), rows, *told)]


def bound_in_words(upper_bounds: Sequence[UpperBound]) -> str:
    """Say how much a faster loader, or one that works beside the step, can gain at most; "" if no part was timed."""
    by_part = {row.part: row.step_s for row in upper_bounds}
    if set(by_part) != set(NAMES) or not by_part["both"]:
        return ""
    loader_s, step_s, both_s = by_part["loader"], by_part["step"], by_part["both"]
    gain = 1 - step_s / both_s
    if gain < LEAST_SHARE:
        return "Without its loader a step takes as long: no setting of the loader can gain anything."
    most = f"No change of the loader can gain more than {words.share(gain)} of a step."
    beside_s = max(loader_s, step_s)
    if loader_s <= step_s:
        return f"{most} It gives batches faster than steps use them: working beside them, it would cost nothing."
    saved = 1 - beside_s / both_s
    if saved < LEAST_SHARE:
        return f"{most} It sets the pace: it has to give batches faster."
    return f"{most} Working beside the steps as fast as it does alone, it would gain {words.share(saved)}."


def forecasts_report(forecasts: Sequence[Forecast] | Unknown) -> list[RenderableType]:
    """Show a row for each change of the loader with its predicted gain; [] if no prediction was asked for."""
    if isinstance(forecasts, Unknown):
        return _unknown("Forecasts of the loader", forecasts)
    if not forecasts:
        return []
    rows = table("with:text", "loader alone:right", "a step:right", "at least:right", ":text")
    for row in forecasts:
        times = (words.duration(each) for each in (row.loader_s, row.step_s, row.least_step_s))
        rows.add_row(row.change, *times, "; ".join(words.plain(each) for each in (row.setting, row.note) if each))
    aside = "predicted, and the least that a step can take; compare proves it"
    return [Group(title("Forecasts of the loader", aside), rows)]


def _unknown(what: str, unknown: Unknown) -> list[RenderableType]:
    if unknown.reason == NOT_ASKED:
        return []
    return [Text(f"{what}: unknown, {words.plain(unknown.reason)}", style="dim")]
