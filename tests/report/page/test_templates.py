from __future__ import annotations

import re
from importlib.resources import files

import pytest

COMPUTES = re.compile(
    r"\{%-?\s*set\b|\|\s*(?:format|selectattr|map|join|upper|capitalize|sort)\b|\.\w+\(|\[\d*:\d*\]"
)
TEMPLATES = sorted(
    path.name
    for path in files("dynotune.report.page").joinpath("templates").iterdir()
    if path.name.endswith(".html")
)


def test_templates_are_frames_of_pages_and_of_no_document():
    assert TEMPLATES == ["page.html"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_lays_out_and_computes_nothing_when_searched_for_expressions(name):
    """Code in a template is seen by no type checker; layouts and writers compute what pages show."""
    template = files("dynotune.report.page").joinpath("templates", name).read_text("utf-8")
    tags = re.findall(r"\{%.*?%\}|\{\{.*?\}\}", template)
    assert [tag for tag in tags if COMPUTES.search(tag)] == []
