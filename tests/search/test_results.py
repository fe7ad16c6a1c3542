"""The files that a finished study leaves: nothing stands in for the recipe, the page or the disk."""

from __future__ import annotations

import html

from dynotune.search.tune import RECIPE, REPORT, write_results

from ..fakes import Watcher
from ..report import studies


def test_the_report_of_a_tune_shows_the_recipe_that_was_written_beside_it(tmp_path):
    write_results(tmp_path, studies.rich(), Watcher())
    page = html.unescape((tmp_path / REPORT).read_text(encoding="utf-8"))
    assert (tmp_path / RECIPE).read_text(encoding="utf-8").strip() in page
    assert sorted(path.name for path in tmp_path.iterdir()) == [RECIPE, REPORT]


def test_the_report_of_a_study_that_proved_nothing_stands_without_a_recipe(tmp_path):
    write_results(tmp_path, studies.only_failures(), Watcher())
    assert [path.name for path in tmp_path.iterdir()] == [REPORT]


def test_a_report_that_fails_half_way_leaves_the_one_from_before(tmp_path, largest_file):
    (tmp_path / REPORT).write_text("from before")
    watcher = Watcher()
    study = studies.rich(warnings=[f"{at} long warning " * 200 for at in range(2000)])
    largest_file(1 << 20)  # the page is larger, the recipe is not
    write_results(tmp_path, study, watcher)
    assert "File too large" in watcher.warned[0]
    assert (tmp_path / REPORT).read_text() == "from before"
    assert sorted(path.name for path in tmp_path.iterdir()) == [RECIPE, REPORT]
