"""What a reader must keep apart is counted, and does not grow again."""

from __future__ import annotations

import concepts
import pytest


@pytest.fixture(scope="module")
def trees():
    return concepts.parsed(concepts.ROOT)


@pytest.mark.parametrize("word", concepts.WORDS)
def test_word_of_the_field_names_one_class(trees, word):
    assert len(concepts.meanings(trees, word)) == 1


def test_circles_are_not_more_than_are_kept(trees):
    """One remains, for types only: what draws and steps call is made from the state that it changes."""
    assert concepts.circles(trees) == [["agent.steps.fast_paths", "agent.steps.steps"]]


@pytest.fixture
def made(tmp_path):
    """Gives the trees of a package with these modules."""

    def write(**modules):
        package = tmp_path / "src/dynotune"
        (package / "room").mkdir(parents=True)
        for name, text in modules.items():
            (package / "room" / f"{name}.py").write_text(text)
        return concepts.parsed(tmp_path)

    return write


def test_meanings_are_counted_when_two_modules_define_a_name(made):
    trees = made(a="class Arm: ...", b="Arm = tuple[int, int]", c="class _Arm: ...\nclass Arms: ...")
    assert concepts.meanings(trees, "Arm") == ["room/a.py", "room/b.py"]


def test_circle_is_seen_when_modules_import_each_other_in_turn(made):
    a, b = "from . import b", "from dynotune.room.c import x"
    trees = made(a=a, b=b, c="def x():\n    from .a import y", d="from .a import b")
    assert concepts.circles(trees) == [["room.a", "room.b", "room.c"]]


def test_seam_is_a_constant_that_needs_nothing_above_it(made):
    trees = made(
        a="def f(): ...\nLIMIT = 3\ndef g(): ...", b="def f(): ...\nBY = {1: f}\ndef g(): ...\nLAST = 2"
    )
    assert concepts.seams(trees) == ["room/a.py"]


def test_sentences_are_found_when_code_searches_for_them(made):
    trees = made(a='def f(text):\n    return "the program ended" in text or text.replace("a pair", "b")')
    assert concepts.sentences(trees) == ["room/a.py:2: the program ended", "room/a.py:2: a pair"]
