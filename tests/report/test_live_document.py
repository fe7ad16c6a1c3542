"""A study or a comparison while it is measured: how far it has come, and what is known so far."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from dynotune.report import Doing, as_text, live_document, shown
from dynotune.report.blocks import Report, Tile, Tiles
from dynotune.report.page.html import live_parts
from dynotune.schema.comparison import Comparison, Pair
from dynotune.schema.run import RunSpec
from dynotune.schema.setting import Setting
from dynotune.schema.study import Candidate, CandidateOutcome, Estimate, Study

COMMAND = RunSpec(command=["python", "train.py", "<b>"], cwd=Path("/"), env={}, base=Path("/runs"))
SETTING = Setting("loader.num_workers", "4")


def comparison(**more: object) -> Comparison:
    return replace(Comparison(id="c", run=COMMAND, candidate_settings=[SETTING], max_pairs=8), **more)


def study(**more: object) -> Study:
    return replace(Study(id="s", run=COMMAND, budget_s=180.0), **more)


def tiles_of(report: Report) -> dict[str, Tile]:
    (tiles,) = [block for block in report.head if isinstance(block, Tiles)]
    return {tile.name: tile for tile in tiles.tiles}


def test_a_comparison_says_how_far_it_is_and_what_its_pairs_gave():
    pairs = [Pair("baseline", 0.02, 0.01), Pair("candidate", 0.08, 0.01)]
    report = live_document.layout(comparison(pairs=pairs), Doing("pair 3", spent_s=60.0, left_s=180.0))
    tiles = tiles_of(report)
    assert tiles["so far"].figure == "4.00×"
    assert tiles["so far"].curve == [2.0, 8.0]
    assert (tiles["pairs"].figure, tiles["pairs"].share) == ("2 of at most 8", 0.25)
    assert tiles["time"].share == 0.25
    assert report.answer.large == "Running"
    text = as_text(shown(report))
    assert text.splitlines()[-1].startswith("verdict  So far 4.00×, from 2 pairs.")
    assert "Both arms" not in text


def test_a_comparison_without_a_pair_says_that_nothing_is_proved_yet():
    report = live_document.layout(comparison(), Doing())
    assert report.answer.sentence == "Nothing is proved yet."
    assert "so far" not in tiles_of(report)
    assert report.use == []


def test_a_study_says_its_stage_its_budget_and_the_best_so_far():
    candidates = [
        Candidate(setting=SETTING, effect="exact"),
        Candidate(setting=Setting("a", "1"), effect="exact"),
    ]
    report = live_document.layout(
        study(
            stage="switch",
            candidates=candidates,
            outcomes={candidates[0].id: CandidateOutcome("no-effect", "It has none.")},
            estimates=[
                Estimate(arm="a=1", against="", phase="switch", speedup=1.25, ci=(1.1, 1.4), num_blocks=4)
            ],
        ),
        Doing(spent_s=90.0),
    )
    tiles = tiles_of(report)
    assert (tiles["time"].detail, tiles["time"].share) == ("of 3 min", 0.5)
    assert tiles["stage"].figure == "2 of 4"
    assert (tiles["settings"].figure, tiles["settings"].share) == ("1 of 2", 0.5)
    assert tiles["best so far"].figure == "1.25×"


def test_the_report_of_a_document_is_its_own_when_it_has_its_answer_or_nobody_measures_any_more():
    ended = comparison(verdict="same", speedup=1.0, ci=(0.99, 1.01))
    assert live_document.is_over(ended)
    assert live_document.layout(ended, Doing()).answer.large == "No effect"
    assert not live_document.is_over(comparison())
    stopped = comparison(pairs=[Pair("baseline", 0.02, 0.01)])
    assert live_document.layout(stopped, Doing(has_ended=True)).answer.large == "Stopped"


def test_live_parts_of_a_document_escape_what_the_command_says():
    parts = live_parts(live_document.layout(comparison(), Doing("<img src=x>")))
    assert "<img" not in "".join(parts)
    assert "<b>" not in parts.header.replace("<b></b>", "")
