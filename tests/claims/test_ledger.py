"""The claims: all of the articles', each with one test, and found by id."""

from __future__ import annotations

import ast
import inspect
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import dynotune
from dynotune.claims import all_claims, named
from dynotune.knobs import parse
from dynotune.schema.errors import UsageError

ROWS = {"0": 16, "1": 14, "2": 25, "3": 40, "4": 27}
PROGRAMS = Path(dynotune.__file__).parent / "claims/programs"
CHECKS = [claim for claim in all_claims() if claim.check]
COMPARED = [claim for claim in all_claims() if claim.compare]


def test_every_row_of_the_articles_is_one_claim():
    rows = [f"{article}.{row}" for article, number in ROWS.items() for row in range(1, number + 1)]
    assert [claim.article for claim in all_claims() if claim.article] == rows


def test_every_claim_has_one_test_or_a_reason_why_none():
    for claim in all_claims():
        assert sum(map(bool, (claim.check, claim.compare, claim.untestable))) == 1, claim.id
        assert (
            claim.says
            and claim.source
            and (claim.fact or claim.read in ("true", "untestable", "conditional"))
        )


def test_enough_claims_can_be_tested_with_and_without_a_gpu():
    tested = [claim for claim in all_claims() if not claim.untestable]
    assert sum(claim.needs in ("", "gpu") for claim in tested) >= 70
    assert sum(claim.needs in ("", "no gpu") for claim in tested) >= 45


@pytest.mark.parametrize("claim", CHECKS, ids=lambda claim: claim.id)
def test_a_check_names_only_what_its_program_has(claim):
    known = _names(ast.parse((PROGRAMS / "check.py").read_text()))
    names = {node.id for node in ast.walk(ast.parse(claim.check)) if isinstance(node, ast.Name)}
    assert names - known - {"torch", *dir(__builtins__), *__builtins__} <= {
        "a",
        "t",
        "stride",
        "free",
        "total",
    }


def _names(tree: ast.Module) -> set[str]:
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    imports = (node.names for node in tree.body if isinstance(node, ast.Import))
    return found | {alias.name.split(".")[0] for alias in itertools.chain(*imports)}


@pytest.mark.parametrize("claim", COMPARED, ids=lambda claim: claim.id)
def test_a_comparison_sets_what_exists_on_a_workload_that_exists(claim):
    for text in [*claim.compare.settings, *claim.compare.baseline]:
        parse(text)
    assert claim.compare.settings != claim.compare.baseline
    documented = ast.get_docstring(ast.parse((PROGRAMS / claim.program).read_text()))
    for workload in [*claim.compare.fair, *claim.compare.elsewhere]:
        assert workload in documented


def test_a_claim_is_named_by_its_id_or_its_row():
    assert [claim.id for claim in named(["2.21", "more-workers"])] == ["more-workers"] * 2


@pytest.mark.parametrize(("id_", "near"), [("more-worker", "more-workers"), ("dirty_ratio", "dirty-ratio")])
def test_an_unknown_claim_is_refused_with_the_nearest(id_, near):
    with pytest.raises(UsageError) as refused:
        named([id_])
    assert near in refused.value.hint


def test_named_claims_send_to_the_list_when_no_claim_is_near():
    with pytest.raises(UsageError) as refused:
        named(["zzzzzzzzzz"])
    assert refused.value.hint == "dynotune claims list shows all."


def test_the_programs_need_nothing_of_ours():
    for path in PROGRAMS.glob("*.py"):
        assert "dynotune" not in {name.split(".")[0] for name in _names(ast.parse(path.read_text()))}
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, PROGRAMS / "check.py"], check=True)
    assert inspect.getdoc(dynotune.claims)
