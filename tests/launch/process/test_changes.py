"""What two walks of one folder say about what happened between them."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from dynotune.launch.process import changes
from dynotune.launch.process.changes import Changes, Entry, Snapshot, between, scan, without_parents

NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)


def snapshot(files):
    """A walk that found these files, by name, with their sizes."""
    entries, listed = {}, {""}
    for name in files:
        while name := changes.parent_of(name):
            entries[name] = Entry(0, 0, 0, True)
            listed.add(name)
    by_depth = sorted(entries, key=lambda name: name.count("/"))
    ordered = {name: entries[name] for name in by_depth}
    ordered.update({name: Entry(0, size, 0, False) for name, size in files.items()})
    return Snapshot(ordered, frozenset(listed))


FILES = st.dictionaries(NAMES.map(lambda name: name + ".f"), st.integers(0, 3), max_size=8)


@given(FILES, FILES)
def test_created_changed_and_deleted_files_are_what_set_arithmetic_says(before, after):
    found = between(snapshot(before), snapshot(after))

    def files(names):
        return {name for name in names if not name.endswith("/")}

    assert files(found.created) == after.keys() - before.keys()
    assert files(found.deleted) == before.keys() - after.keys()
    assert set(found.changed) == {
        name for name in before.keys() & after.keys() if before[name] != after[name]
    }


@given(FILES)
def test_nothing_happened_between_a_walk_and_itself(files):
    assert between(snapshot(files), snapshot(files)) == Changes()


@given(st.sets(NAMES.map(lambda name: name + "/") | NAMES))
def test_a_folder_is_named_only_where_nothing_in_it_is(names):
    kept = without_parents(names)
    assert set(kept) <= names
    assert all(not any(changes.parent_of(other) == name for other in names) for name in kept)


def test_links_are_not_followed_and_skipped_folders_not_entered(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(scan(tmp_path, skip=[tmp_path / "runs"]).entries) == ["loop"]


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_changed(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    for name in "ab":
        os.utime(tmp_path / name, ns=(1, 1))
    before = scan(tmp_path)
    (tmp_path / "b").rename(tmp_path / "a")
    assert between(before, scan(tmp_path)) == Changes(changed=("a",), deleted=("b",))


def test_a_cut_walk_invents_nothing(tmp_path):
    for name in ("a/1", "a/2", "b/1", "b/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    before = scan(tmp_path, most=5)
    assert len(before.entries) == 5
    (tmp_path / "a" / "0").touch()
    (tmp_path / "b" / "3").touch()
    found = between(before, scan(tmp_path))
    assert found.created == ("a/0",)
    assert found.deleted == ()


def test_changes_do_not_call_a_file_deleted_when_its_folder_cannot_be_read(tmp_path):
    before = snapshot({"closed/x": 1})
    after = Snapshot({"closed/": Entry(0, 0, 0, True)}, frozenset({""}))
    assert between(before, after) == Changes()
