from __future__ import annotations

import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynotune.launch.caches import contents, unpack
from dynotune.launch.caches import pack as cache_pack
from dynotune.schema import cache_pack as schema
from dynotune.schema import document
from dynotune.schema.cache_pack import Manifest
from dynotune.schema.errors import CannotRunHere, UsageError

from .. import packs

NAMES = st.from_regex(r"[a-z0-9_.]{1,12}", fullmatch=True).filter(
    lambda name: (
        name not in (".", "..") and not name.endswith((".lock", ".tmp", ".partial")) and name != "lock"
    )
)
TREES = st.dictionaries(
    st.tuples(NAMES, NAMES).map("/".join), st.binary(max_size=2000), min_size=1, max_size=6
)


def unpacked(pack: Path, target: Path):
    with unpack.opened(pack) as file:
        return unpack.unpack(file, str(pack), [packs.place("inductor", target)])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_packed_files_come_out_the_same(tmp_path_factory, tree):
    base = tmp_path_factory.mktemp("round")
    made = packs.pack(base / "a.pack", packs.fill(base / "cache", tree))
    done = unpacked(base / "a.pack", base / "there" / "cache")
    assert packs.files_of(base / "there" / "cache") == packs.files_of(base / "cache")
    assert (done.num_new, done.num_kept, done.new_bytes) == (len(tree), 0, made.manifest.total_bytes)
    assert packs.names_in(base / "there") == ["cache"]


def test_a_pack_is_a_tar_with_the_manifest_first_and_the_same_each_time(tmp_path):
    cache = packs.fill(tmp_path / "cache", {"b/2": b"two", "a": b"one"})
    made = packs.pack(tmp_path / "a.pack", cache)
    with tarfile.open(tmp_path / "a.pack", "r:gz") as archive:
        names = archive.getnames()
        manifest = msgspec.json.decode(archive.extractfile("manifest.json").read(), type=Manifest)
        assert archive.extractfile("files/0000001").read() == b"two"
    assert names == ["manifest.json", "files/0000000", "files/0000001"]
    assert manifest == made.manifest
    assert [file.path for file in manifest.files] == ["a", "b/2"]
    assert packs.pack(tmp_path / "b.pack", cache).manifest.files == made.manifest.files
    assert (tmp_path / "a.pack").stat().st_size == made.size_bytes


def test_links_pipes_locks_and_names_that_no_pack_may_hold_are_left_out(tmp_path):
    cache = packs.fill(
        tmp_path / "cache", {"good": b"1", "locks/x.lock": b"", "bad\nname": b"2", "back\\slash": b"3"}
    )
    (cache / "link").symlink_to("/etc/passwd")
    os.mkfifo(cache / "pipe")
    made = packs.pack(tmp_path / "a.pack", cache)
    assert [file.path for file in made.manifest.files] == ["good"]
    assert sorted(each.path for each in made.left_out) == ["back\\slash", "bad\nname"]


def test_a_file_that_is_being_written_is_left_out_and_said(tmp_path, monkeypatch):
    cache = packs.fill(tmp_path / "cache", {"a": b"whole", "b": b"begun"})
    stat_ = os.fstat
    calls = 0

    def growing(descriptor):
        nonlocal calls
        if Path(f"/proc/self/fd/{descriptor}").readlink() == cache / "b":
            calls += 1
            with (cache / "b").open("ab") as file:
                file.write(b"more")
        return stat_(descriptor)

    monkeypatch.setattr(cache_pack.os, "fstat", growing)
    made = packs.pack(tmp_path / "a.pack", cache)
    assert calls >= 2
    assert [file.path for file in made.manifest.files] == ["a"]
    assert [(each.path, "writing" in each.reason) for each in made.left_out] == [("b", True)]


def test_a_file_that_settles_is_taken_as_it_was_at_one_moment(tmp_path, monkeypatch):
    cache = packs.fill(tmp_path / "cache", {"b": b"begun"})
    copied, first = cache_pack._copied, True

    def once(file, spool):
        nonlocal first
        if first:
            first = False
            (cache / "b").write_bytes(b"begun and done")
            return "another process was writing it"
        return copied(file, spool)

    monkeypatch.setattr(cache_pack, "_copied", once)
    packs.pack(tmp_path / "a.pack", cache)
    unpacked(tmp_path / "a.pack", tmp_path / "there")
    assert packs.files_of(tmp_path / "there") == {"b": b"begun and done"}


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from dynotune.launch.caches import pack as cache_pack
from dynotune.launch.caches.contents import Place
from dynotune.schema.cache_pack import Conditions
from dynotune.schema.errors import CannotRunHere
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    cache_pack.pack(Path(sys.argv[1]), [Place("inductor", Path(sys.argv[2]))], Conditions(), env={})
except CannotRunHere as error:
    print(error.message)
"""


def test_a_full_disk_leaves_no_half_pack_and_the_old_one_as_it_was(tmp_path):
    cache = packs.fill(tmp_path / "cache", {"a": os.urandom(300_000)})
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.pack").write_bytes(b"the old one")
    words = [sys.executable, "-c", FULL_DISK, str(tmp_path / "out/a.pack"), str(cache)]
    ended = subprocess.run(
        words, capture_output=True, text=True, env={"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert "Nothing of it is left" in ended.stdout, ended.stderr
    assert packs.files_of(tmp_path / "out") == {"a.pack": b"the old one"}


def test_an_interrupted_pack_leaves_nothing(tmp_path, monkeypatch):
    cache = packs.fill(tmp_path / "cache", {"a": b"1", "b": b"2"})

    def interrupt(**file):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache_pack, "PackedFile", interrupt)
    with pytest.raises(KeyboardInterrupt):
        packs.pack(tmp_path / "a.pack", cache)
    assert packs.names_in(tmp_path) == ["cache"]


def test_no_file_is_ever_whole_in_memory(tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    with (cache / "large").open("wb") as file:
        file.truncate(200 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    packs.pack(tmp_path / "a.pack", cache)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@pytest.mark.parametrize("where", ["cache/a.pack", "no/such/a.pack", "."])
def test_a_pack_goes_to_a_file_outside_of_the_caches(tmp_path, where):
    cache = packs.fill(tmp_path / "cache", {"a": b"1"})
    with pytest.raises(UsageError):
        packs.pack(tmp_path / where, cache)
    assert packs.files_of(cache) == {"a": b"1"}


def test_nothing_to_pack_is_an_error_that_says_where_was_looked(tmp_path):
    with pytest.raises(UsageError, match=str(tmp_path / "cache")):
        packs.pack(tmp_path / "a.pack", tmp_path / "cache")
    assert packs.names_in(tmp_path) == []


def test_pack_refuses_before_anything_is_copied_when_a_pack_has_no_room_for_all_files(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "MOST_FILES", 2)
    monkeypatch.setattr(cache_pack, "_copy", lambda *_: pytest.fail("a file was copied"))
    cache = packs.fill(tmp_path / "cache", {"a": b"1", "b": b"2", "c": b"3", "c.lock": b"", "d\ne": b""})
    with pytest.raises(UsageError, match=r"have 3 files .* room for 2 of them") as caught:
        packs.pack(tmp_path / "a.pack", cache)
    assert "--without" in caught.value.hint and packs.names_in(tmp_path) == ["cache"]


def test_pack_refuses_before_anything_is_copied_when_names_need_more_than_a_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr(schema, "MOST_MANIFEST_BYTES", 8000)
    cache = packs.fill(tmp_path / "cache", {f"{number}{'é' * 100}": b"" for number in range(40)})
    with pytest.raises(UsageError, match=r"have 40 files .* room for [12]\d of them"):
        packs.pack(tmp_path / "a.pack", cache)


def test_pack_leaves_out_what_comes_while_it_is_written_when_it_is_full(tmp_path, monkeypatch):
    cache, refused = packs.fill(tmp_path / "cache", {"a": b"1"}), cache_pack._refuse_many

    def then_one_more(*args):
        refused(*args)
        packs.fill(cache, {"b": b"2"})

    monkeypatch.setattr(schema, "MOST_FILES", 1)
    monkeypatch.setattr(cache_pack, "_refuse_many", then_one_more)
    made = packs.pack(tmp_path / "a.pack", cache)
    assert [file.path for file in made.manifest.files] == ["a"]
    assert [each.path for each in made.left_out] == ["b"] and "room for 1" in made.left_out[0].reason


@settings(max_examples=50, deadline=None)
@given(path=st.text(min_size=1, max_size=60), size_bytes=st.integers(0, 2**63))
def test_manifest_room_is_enough_when_names_have_any_signs(path, size_bytes):
    head = packs.manifest()
    file = packs.listed(path, cache="jiterator", size_bytes=size_bytes)
    room = schema.ManifestRoom(head)
    empty = room.num_bytes
    assert room.add(path) and room.num_files == 1
    assert len(document.encode(packs.manifest(file), indent=0)) <= room.num_bytes
    assert empty >= len(document.encode(head, indent=0))


def test_an_unwritable_folder_is_said(tmp_path):
    cache = packs.fill(tmp_path / "cache", {"a": b"1"})
    with pytest.raises(CannotRunHere, match="Cannot write"):
        packs.pack(Path("/proc/a.pack"), cache)


def test_only_variables_of_compilers_are_noted_and_none_that_name_folders(tmp_path):
    env = {
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/x",
        "TRITON_HOME": "/y",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    cache = packs.fill(tmp_path / "cache", {"a": b"1"})
    places = [packs.place("inductor", cache)._replace(variable="TORCHINDUCTOR_CACHE_DIR")]
    made = cache_pack.pack(tmp_path / "a.pack", places, packs.CONDITIONS, env=env)
    assert made.manifest.variables == {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}


def test_pack_carries_a_package_into_the_folder_of_packages_when_it_is_named(tmp_path):
    cache = packs.fill(tmp_path / "cache", {"a": b"one"})
    package = packs.fill(tmp_path / "models", {"net.pt2": b"compiled"}) / "net.pt2"
    made = packs.pack(tmp_path / "a.pack", cache, packages=[package])
    assert made.manifest.caches == ["inductor", "packages"]
    with unpack.opened(tmp_path / "a.pack") as file:
        there = [packs.place("inductor", tmp_path / "there"), contents.packages(tmp_path / "below")]
        unpack.unpack(file, "a.pack", there)
    assert (tmp_path / "below" / "packages" / "net.pt2").read_bytes() == b"compiled"


def test_unpack_leaves_a_package_out_when_no_folder_is_named(tmp_path):
    package = packs.fill(tmp_path / "models", {"net.pt2": b"compiled"}) / "net.pt2"
    packs.pack(tmp_path / "a.pack", packs.fill(tmp_path / "cache", {"a": b"one"}), packages=[package])
    (left,) = unpacked(tmp_path / "a.pack", tmp_path / "there").left_out
    assert (left.cache, left.reason) == ("packages", "--caches DIR says where")


def test_pack_is_refused_when_it_would_replace_a_package(tmp_path):
    cache = packs.fill(tmp_path / "cache", {"a": b"one"})
    package = packs.fill(tmp_path / "models", {"net.pt2": b"compiled"}) / "net.pt2"
    (tmp_path / "link.pt2").symlink_to(package)
    for target in (package, tmp_path / "link.pt2"):
        with pytest.raises(UsageError, match="would replace the package"):
            packs.pack(target, cache, packages=[package])
    assert package.read_bytes() == b"compiled"


def test_pack_refuses_packages_when_one_is_missing_or_two_have_one_name(tmp_path):
    cache = packs.fill(tmp_path / "cache", {"a": b"one"})
    one = packs.fill(tmp_path / "one", {"net.pt2": b"1"}) / "net.pt2"
    two = packs.fill(tmp_path / "two", {"net.pt2": b"2"}) / "net.pt2"
    for packages, why in (([tmp_path / "none.pt2"], "There is no file"), ([one, two], "called net.pt2")):
        with pytest.raises(UsageError, match=why):
            packs.pack(tmp_path / "a.pack", cache, packages=packages)
    assert not (tmp_path / "a.pack").exists()
