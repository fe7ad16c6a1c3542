"""The soak's own controls: what it would say of memory that grows, of a case that lost something, and of what
is left."""

from __future__ import annotations

import json
import sys

import pytest

from . import soak
from .processes import SCENES, Lost, Skipped


def test_a_case_is_drawn_again_when_its_number_and_seed_are_the_same():
    assert [soak.drawn(at, 3)[0].name for at in range(50)] == [soak.drawn(at, 3)[0].name for at in range(50)]
    drawn = [soak.drawn(at, 3) for at in range(400)]
    names = {scene.name for scene, _, _ in drawn}
    assert {scene.name for scene in SCENES} <= names
    assert any("odd program" in name for name in names)
    assert any(fault is soak.NONE for _, fault, _ in drawn)


@pytest.mark.parametrize(
    ("kib", "said"),
    [
        ([100] * 30, ""),
        ([100, 130, 90] * 10, ""),
        ([100 + at for at in range(60)], "memory of watch grew"),
        ([100] * 5 + [1000] * 3, ""),
    ],
)
def test_memory_that_grows_through_a_piece_is_told_when_there_are_enough_cases(kib, said):
    assert soak.grown("watch", kib).startswith(said) and bool(soak.grown("watch", kib)) == bool(said)


@pytest.fixture
def outcomes(monkeypatch, tmp_path):
    """Runs one piece into a file whose cases end as given, without starting anything."""

    class Quiet:
        def __init__(self, folder):
            self.kib = []

        def look(self):
            self.kib.append(1000)

        def end(self):
            return ""

    def run(*ends):
        left = list(ends)

        def strike(world, fault, random):
            end = left.pop(0)
            if not left:
                monkeypatch.setattr(soak.time, "monotonic", lambda: 1e9)
            if end is not None:
                raise end

        monkeypatch.setattr(soak, "strike", strike)
        monkeypatch.setattr(soak, "Companion", Quiet)
        monkeypatch.setattr(sys, "argv", ["soak", "--out", str(tmp_path / "soak.json"), "--workers", "1"])
        code = soak.main()
        monkeypatch.undo()
        return code, json.loads((tmp_path / "soak.json").read_text())

    return run


def test_a_piece_goes_on_where_the_last_one_ended_and_a_loss_stays_in_the_total(outcomes):
    code, first = outcomes(None, Lost("processes are left: [1]"), Skipped("over before the fault"))
    assert code == 1
    assert (first["total"]["tried"], first["total"]["held"], first["total"]["orphans"]) == (2, 1, 1)
    code, second = outcomes(None, Lost("left: mounts ['x']"))
    assert code == 1
    assert [part["first"] for part in second["pieces"]] == [0, 3]
    assert (second["total"]["tried"], second["total"]["orphans"], second["total"]["left"]) == (4, 1, 1)
