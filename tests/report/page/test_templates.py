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
    if path.name.endswith((".html", ".md"))
)


def test_templates_are_those_of_each_document_and_what_they_share():
    documents = {f"{name}.{form}" for name in ("study", "comparison", "diagnosis") for form in ("html", "md")}
    assert documents < set(TEMPLATES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_lays_out_and_computes_nothing_when_searched_for_expressions(name):
    """Code in a template is seen by no type checker; the views of `report.page` compute what templates
    show."""
    template = files("dynotune.report.page").joinpath("templates", name).read_text("utf-8")
    tags = re.findall(r"\{%.*?%\}|\{\{.*?\}\}", template)
    assert [tag for tag in tags if COMPUTES.search(tag)] == []
