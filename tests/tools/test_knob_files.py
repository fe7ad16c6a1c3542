"""Files that name a knob: counted by its whole id, data files apart from modules."""

from __future__ import annotations

from pathlib import Path

from knob_files import Places, main, places_of_knobs

FILES = {
    "knobs/catalogue.toml": '["loader.workers"]\n["loader.pin"]\n["python"]\n["env.NAME"]\n',
    "search/values.py": 'TRIED = ("loader.workers",)\n',
    "search/words.py": 'OTHER = "loader.workers_more", "dataloader.workers"\n',
    "claims/ledger.toml": 'settings = ["loader.workers=4"]\n',
}


def checkout(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / "src/dynotune" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_files_name_a_knob_when_they_hold_its_whole_id(tmp_path):
    assert places_of_knobs(checkout(tmp_path)) == {
        "loader.workers": Places(["search/values.py"], ["claims/ledger.toml"]),
        "loader.pin": Places([], []),
    }


def test_files_of_one_knob_are_printed_when_it_is_named(tmp_path, capsys):
    main([str(checkout(tmp_path)), "loader.workers"])
    assert capsys.readouterr().out.split() == ["search/values.py", "claims/ledger.toml"]
