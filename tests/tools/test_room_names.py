"""Names that rooms import of each other: their number stays as it is kept, or a decision says why it grew."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import room_names

FILES = {
    "__init__.py": "",
    "below/__init__.py": "from top.below.inner import words\nfrom top.below.numbers import half\n",
    "below/numbers.py": "from top.below.inner.words import plain\n\ndef half(n): ...\n\ndef third(n): ...\n",
    "below/inner/__init__.py": "",
    "below/inner/words.py": "def plain(): ...\n\ndef fancy(): ...\n",
    "above/__init__.py": (
        "from top.lazy_face import lazy_face\n__getattr__ = lazy_face(__name__, {'work': 'work'})\n"
    ),
    "above/work.py": "from top.below import half\n\ndef work(): ...\n",
    "lazy_face.py": "def lazy_face(package, homes): ...\n",
    "side/__init__.py": "",
    "side/task.py": "from top.above import work\nfrom ..below.numbers import half\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A package `top` in which `above` and `side` use `half` of `below`, which uses `plain` of its own
    `inner`."""
    for name, text in FILES.items():
        (tmp_path / "top" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / name).write_text(text)
    return tmp_path / "top"


def test_rooms_offer_as_many_names_as_are_kept() -> None:
    kept = tomllib.loads(room_names.KEPT.read_text(encoding="utf-8"))
    assert room_names.complaints(room_names.counted(), kept) == []


def test_a_name_counts_once_when_it_is_imported_in_two_ways(source: Path) -> None:
    assert room_names.counted(source) == {"above": 1, "below": 1, "below.inner": 1}


def test_names_read_from_a_module_count_when_a_room_imports_the_module(source: Path) -> None:
    (source / "side" / "task.py").write_text(
        "from top import below\nbelow.words.fancy()\nbelow.words.plain()\nbelow.x\n"
    )
    assert room_names.counted(source) == {"below": 3, "below.inner": 1}
    (source / "side" / "task.py").write_text("from top.below import inner\ninner.words.fancy()\n")
    assert room_names.counted(source) == {"below": 1, "below.inner": 2}


def test_a_count_that_grew_is_told_when_no_decision_raised_it(source: Path) -> None:
    kept = room_names.counted(source)
    (source / "side" / "more.py").write_text("from top.below.numbers import third\n")
    (complaint,) = room_names.complaints(room_names.counted(source), kept)
    assert complaint.startswith("below: other rooms import 2 names, and 1 are kept.")
    assert "docs/decisions/" in complaint


def test_a_count_that_fell_is_told_when_the_kept_number_is_not_lowered(source: Path) -> None:
    kept = room_names.counted(source)
    (source / "side" / "task.py").unlink()
    (complaint,) = room_names.complaints(room_names.counted(source), kept)
    assert (
        complaint
        == "above: other rooms import 0 names, fewer than the 1 kept. Write 0 into tools/room_names.toml."
    )
