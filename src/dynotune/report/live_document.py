"""Lay out a study or a comparison that goes on: its report so far, and how far it has come."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dynotune.report.blocks import Answer, Fields, On, Report, Tile, Tiles
from dynotune.report.documents import layout_of
from dynotune.report.doing import Doing
from dynotune.report.study import long_time, spent_s
from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.study import Stage, Study
from dynotune.text import words

STAGES: dict[Stage, str] = {
    "know": "finding out what holds the command up",
    "switch": "trying settings within one run",
    "prune": "measuring each setting's part",
    "confirm": "proving the best settings in fresh runs",
}
MOST_RATIOS = 60


def is_over(document: Study | Comparison) -> bool:
    """Tell whether a document has its answer."""
    if isinstance(document, Study):
        return document.finished
    return document.verdict is not None or document.failed is not None


def layout(document: Study | Comparison, doing: Doing) -> Report:
    """Lay out a document. While it is not finished, its answer is how far it has come."""
    report = layout_of(document)
    if is_over(document) or doing.has_ended:
        return report
    tiles = _of_study(document, doing) if isinstance(document, Study) else _of_comparison(document, doing)
    # Figures of an unfinished document are the tiles; what to type next waits for the answer.
    head = [block for block in report.head if isinstance(block, Fields) and On.SCREEN in block.on]
    return replace(report, answer=_answer(document, doing), use=[], head=[Tiles(list(tiles)), *head])


def _answer(document: Study | Comparison, doing: Doing) -> Answer:
    stage = STAGES[document.stage] if isinstance(document, Study) else ""
    what = doing.what or stage or "pairs of fresh runs are measured"
    seen = _seen(document)
    sentence = f"So far {seen}. The answer comes with its interval." if seen else "Nothing is proved yet."
    return Answer(large="Running", rest=stage or what, sentence=sentence, line=f"{sentence} Now: {what}.")


def _seen(document: Study | Comparison) -> str:
    """Write the speed-up so far, without an interval; "" if there is none."""
    if isinstance(document, Study):
        best = max((one.speedup for one in document.estimates), default=None)
        return "" if best is None else f"the best setting or settings gave {words.single(best)}"
    ratio, num = _ratio(document.pairs), len(document.pairs)
    noun = "block" if document.within else "pair"
    return "" if ratio is None else f"{words.single(ratio)}, from {num} {noun}{'' if num == 1 else 's'}"


def _ratio(pairs: Sequence[Pair]) -> float | None:
    """Return the geometric mean of the pairs' speed-ups; None without pairs."""
    ratios = _ratios(pairs)
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None


def _ratios(pairs: Sequence[Pair]) -> list[float]:
    return [pair.baseline_s / pair.candidate_s for pair in pairs if pair.candidate_s > 0 < pair.baseline_s]


def _of_study(study: Study, doing: Doing) -> Iterator[Tile]:
    spent_s_ = max(spent_s(study), doing.spent_s or 0.0)
    of_budget = f"of {long_time(study.budget_s)}"
    share = spent_s_ / study.budget_s if study.budget_s else None
    yield Tile("time", long_time(spent_s_), of_budget, share=share)
    stages = list(STAGES)
    at = stages.index(study.stage)
    yield Tile("stage", f"{at + 1} of {len(stages)}", STAGES[study.stage], share=at / len(stages))
    num, decided = len(study.candidates), len(study.outcomes)
    if num:
        yield Tile("settings", f"{decided} of {num}", "decided", share=decided / num)
    best = max((one.speedup for one in study.estimates), default=None)
    if best is not None:
        yield Tile("best so far", words.single(best), "not proved yet")
    if study.trials:
        yield Tile("runs", f"{len(study.trials):,}")


def _of_comparison(comparison: Comparison, doing: Doing) -> Iterator[Tile]:
    ratio = _ratio(comparison.pairs)
    if ratio is not None:
        ratios = _ratios(comparison.pairs)[-MOST_RATIOS:]
        yield Tile("so far", words.single(ratio), "no interval yet", ratios)
    num, most = len(comparison.pairs), comparison.max_pairs
    void = f"{len(comparison.voided)} void" if comparison.voided else ""
    name = "blocks" if comparison.within else "pairs"
    yield Tile(name, f"{num} of at most {most}", void, share=num / most if most else None)
    for arm in ("baseline", "candidate"):
        values = [getattr(pair, f"{arm}_s") for pair in comparison.pairs][-MOST_RATIOS:]
        if values:
            figure = words.value(values[-1], comparison.run.objective, comparison.unit)
            yield Tile(arm, figure, "in the last one", values)
    if doing.spent_s is not None:
        left = "" if doing.left_s is None else f"about {long_time(max(0.0, doing.left_s))} left"
        whole_s = doing.spent_s + (doing.left_s or 0.0)
        share = doing.spent_s / whole_s if doing.left_s is not None and whole_s else None
        yield Tile("time", long_time(doing.spent_s), left, share=share)
