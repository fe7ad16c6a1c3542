"""The section of a study's page that proves the recipe: whether its turns are fresh pairs or blocks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dynotune.report.page.html import markdown
from dynotune.schema.comparison import BlocksAnswer
from dynotune.schema.study import Study

from .. import studies

NO_PART = "were not used to choose settings"


def confirmed(**changes: Any) -> Study:
    study = studies.rich()
    return msgspec.structs.replace(study, confirmed=msgspec.structs.replace(study.confirmed, **changes))


def section(study: Study) -> str:
    return markdown(study).partition("## Confirmation")[2].partition("\n## ")[0]


def test_confirmation_says_that_pairs_had_no_part_in_the_choice_when_they_are_fresh():
    text = section(studies.rich())
    assert f"The recipe against the command as written, on pairs that {NO_PART}." in text
    assert "| Pair |" in text and "block" not in text


def test_confirmation_says_that_blocks_had_a_part_in_the_choice_when_nothing_else_proves():
    text = section(confirmed(within=True))
    assert NO_PART not in text and "pair" not in text.lower()
    assert "The recipe against the command as written, in blocks within one process" in text
    assert "that were also used to choose the settings" in text and "| Block |" in text


@pytest.mark.parametrize("within", [False, True])
def test_confirmation_names_the_settings_when_there_is_no_recipe(within):
    study = msgspec.structs.replace(confirmed(within=within, verdict="undecided"), recipe=[])
    text = section(study)
    assert "recipe" not in text.lower()
    assert "host.num_threads=4 loader.num_workers=8 precision.autocast=bf16 against the command" in text


def test_confirmation_names_the_blocks_when_they_count_beside_the_pairs():
    pair = studies.rich().confirmed.pairs[0]
    blocks = BlocksAnswer(verdict="faster", speedup=2.3, ci=(2.2, 2.4), pairs=[pair] * 6)
    text = section(confirmed(pooled=True, blocks=blocks))
    assert NO_PART in text and "of them and of 6 blocks, which did" in text
