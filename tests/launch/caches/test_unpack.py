from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dynotune.launch import sweep
from dynotune.launch.caches import unpack
from dynotune.schema.cache_pack import MOST_MANIFEST_BYTES
from dynotune.schema.errors import CannotRunHere, DynotuneError, RecordError, UsageError

from .. import packs

ONE = packs.listed("a")
FILE = "files/0000000"


def take(pack: Path, target: Path, cache: str = "inductor", **more):
    with unpack.opened(pack) as file:
        return unpack.unpack(file, pack.name, [packs.place(cache, target)], **more)


def refused(pack: Path, base: Path) -> str:
    """The reason; nothing of it is anywhere."""
    (base / "home").mkdir(exist_ok=True)
    with pytest.raises(DynotuneError) as caught:
        take(pack, base / "home/cache")
    assert packs.files_of(base / "home") == {}
    return caught.value.message


@pytest.mark.parametrize(
    "path",
    [
        "../a",
        "/etc/a",
        "a/../../b",
        "a//b",
        "./a",
        "a/",
        "",
        "a\0b",
        "a\nb",
        "a\x1b[2Jb",
        "..",
        "a\\b",
        "x" * 300,
        "a/" * 600 + "b",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path, path):
    pack = packs.by_hand(tmp_path / "p", packs.manifest(packs.listed(path)), packs.member(FILE))
    assert "is not a pack" in refused(pack, tmp_path)


def test_a_path_that_is_no_text_is_refused(tmp_path):
    raw = msgspec.json.encode(packs.manifest(ONE)).replace(b'"path":"a"', b'"path":"\\ud800"')
    assert refused(packs.by_hand(tmp_path / "p", raw, packs.member(FILE)), tmp_path)


@pytest.mark.parametrize(
    "fields",
    [
        {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0},
        {"type": tarfile.LNKTYPE, "linkname": "manifest.json", "size": 0},
        {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 5, "size": 0},
        {"type": tarfile.BLKTYPE, "size": 0},
        {"type": tarfile.FIFOTYPE, "size": 0},
        {"type": tarfile.DIRTYPE, "size": 0},
        {"type": tarfile.GNUTYPE_SPARSE},
        {"type": tarfile.CONTTYPE},
        {"name": "../../evil"},
        {"name": "/etc/evil"},
        {"name": "files/0000001"},
        {"name": "x" * 5000},
        {"pax_headers": {"path": "../../evil"}},
        {"pax_headers": {"GNU.sparse.realsize": "1000000000000"}},
    ],
)
def test_a_member_that_is_no_plain_file_in_its_place_is_refused(tmp_path, fields):
    pack = packs.by_hand(tmp_path / "p", packs.manifest(ONE), packs.member(FILE, **fields))
    assert "is not a pack" in refused(pack, tmp_path)


@pytest.mark.parametrize(
    "document",
    [
        packs.manifest(ONE, ONE),
        packs.manifest(packs.listed("a"), packs.listed("a/b")),
        packs.manifest(packs.listed("a", size_bytes=-1)),
        packs.manifest(packs.listed("a", sha256="no")),
    ],
    ids=["twice", "file-and-folder", "negative", "no-digest"],
)
def test_a_manifest_that_no_dynotune_wrote_is_refused(tmp_path, document):
    pack = packs.by_hand(tmp_path / "p", document, packs.member(FILE), packs.member("files/0000001"))
    assert "is not a pack" in refused(pack, tmp_path)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LD_PRELOAD", "/evil.so"),
        ("TRITON_X", "a\nRUN evil"),
        ("TORCHINDUCTOR_CACHE_DIR", "/evil"),
        ("TRITON_CACHE_DIR", "/evil"),
        ("TRITON_HOME", "/evil"),
    ],
)
def test_a_variable_that_no_dynotune_packs_is_refused(tmp_path, variable, value):
    pack = packs.by_hand(tmp_path / "p", packs.manifest(ONE, variables={variable: value}), packs.member(FILE))
    assert f"'{variable}' is no variable that a pack may set" in refused(pack, tmp_path)


def test_of_a_compilers_variables_a_pack_sets_only_those_that_tune(tmp_path):
    """Behind --trust, too: whoever trusts the code in a pack does not know of the module that a variable
    names."""
    manager = {"TRITON_CACHE_MANAGER": "evil:Manager", "TORCHINDUCTOR_CUTLASS_DIR": "/tmp/it's"}
    variables = {**manager, "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHINDUCTOR_FREEZING": "evil"}
    pack = packs.by_hand(tmp_path / "p", packs.manifest(ONE, variables=variables), packs.member(FILE))
    unpacked = take(pack, tmp_path / "cache")
    assert unpacked.variables == {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    said = "\n".join(unpacked.notes)
    assert "export TRITON_CACHE_MANAGER=evil:Manager" in said and "export TORCHINDUCTOR_FREEZING=evil" in said
    assert f"export TORCHINDUCTOR_CUTLASS_DIR={shlex.quote('/tmp/it' + chr(39) + 's')}" in said


@pytest.mark.parametrize(
    ("compiler", "is_set"),
    [("g++", True), ("clang++-18", True), ("/usr/bin/g++", False), ("./g++", False), ("g++ -B/x", False)],
)
def test_a_pack_sets_a_compiler_by_its_plain_name_alone(tmp_path, compiler, is_set):
    manifest = packs.manifest(ONE, variables={"CXX": compiler})
    pack = packs.by_hand(tmp_path / "p", manifest, packs.member(FILE))
    unpacked = take(pack, tmp_path / "there")
    assert unpacked.variables == ({"CXX": compiler} if is_set else {})
    assert any("export CXX=" in note for note in unpacked.notes) is not is_set


def test_a_manifest_of_another_version_is_refused_as_such(tmp_path):
    raw = msgspec.json.encode(packs.manifest(ONE)).replace(b"cache-pack/1", b"cache-pack/2")
    assert "cache-pack/2" in refused(packs.by_hand(tmp_path / "p", raw, packs.member(FILE)), tmp_path)


def test_unpack_refuses_a_manifest_that_is_not_json(tmp_path):
    assert "JSON" in refused(packs.by_hand(tmp_path / "p", b"{nonsense", packs.member(FILE)), tmp_path)


def test_a_manifest_that_claims_gigabytes_is_not_read(tmp_path):
    info, _ = packs.member("manifest.json")
    info.size = MOST_MANIFEST_BYTES + 1
    (tmp_path / "p").write_bytes(gzip.compress(info.tobuf(tarfile.USTAR_FORMAT)))
    assert "claims" in refused(tmp_path / "p", tmp_path)


def test_files_other_than_their_digests_are_refused_and_none_of_the_others_is_used(tmp_path):
    document = packs.manifest(packs.listed("good"), packs.listed("bad", b"y"))
    pack = packs.by_hand(
        tmp_path / "p", document, packs.member(FILE, b"x"), packs.member("files/0000001", b"z")
    )
    assert "'bad' is not what its manifest says" in refused(pack, tmp_path)


def test_more_or_fewer_files_than_listed_and_other_sizes_are_refused(tmp_path):
    two = [packs.member(FILE), packs.member("files/0000001")]
    more = packs.by_hand(tmp_path / "more", packs.manifest(ONE), *two)
    assert "more than its manifest lists" in refused(more, tmp_path)
    fewer = packs.by_hand(tmp_path / "fewer", packs.manifest(ONE, packs.listed("b")), two[0])
    assert refused(fewer, tmp_path)
    larger = packs.by_hand(tmp_path / "larger", packs.manifest(ONE), packs.member(FILE, b"x" * 9999))
    assert "not as large" in refused(larger, tmp_path)
    behind = packs.by_hand(tmp_path / "behind", packs.manifest(ONE), two[0], tail=bytes(1 << 20))
    assert "more than its manifest lists" in refused(behind, tmp_path)


def test_a_bomb_is_refused_by_what_it_declares_and_read_no_further(tmp_path):
    huge = packs.listed("a", size_bytes=1 << 50)
    pack = packs.by_hand(tmp_path / "p", packs.manifest(huge), packs.member(FILE))
    with pytest.raises(CannotRunHere, match="more than the"):
        take(pack, tmp_path / "cache")
    with pytest.raises(CannotRunHere, match="no room"):
        take(pack, tmp_path / "cache", most_bytes=1 << 60)
    with pytest.raises(CannotRunHere, match="more than"):
        take(
            packs.by_hand(tmp_path / "p", packs.manifest(ONE), packs.member(FILE)),
            tmp_path / "cache",
            most_bytes=0,
        )


def test_a_pack_that_was_cut_anywhere_leaves_nothing(tmp_path):
    packs.pack(tmp_path / "whole", packs.fill(tmp_path / "from", {"a": os.urandom(3000), "b": b"2"}))
    whole = (tmp_path / "whole").read_bytes()
    for length in [0, 1, 10, 100, *range(200, len(whole), 397), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        assert refused(tmp_path / "cut", tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_a_byte_gets_other_content_in_place(tmp_path_factory, data):
    base = tmp_path_factory.mktemp("changed")
    content = {"a": b"one" * 50, "sub/b": b"two" * 50}
    packs.pack(base / "whole", packs.fill(base / "from", content))
    raw = bytearray(gzip.decompress((base / "whole").read_bytes()))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    (base / "p").write_bytes(gzip.compress(bytes(raw), 1))
    try:
        take(base / "p", base / "home/cache")
    except DynotuneError:
        assert packs.files_of(base / "home") == {}
        return
    # It hit a name or a place that does not matter: what is there is what was packed, under some proper path.
    assert sorted(packs.files_of(base / "home/cache").values()) == sorted(content.values())
    assert {each.name for each in base.iterdir()} == {"whole", "from", "p", "home"}


NO_PACKS = {
    "nothing": b"",
    "not gzip": b"not gzip",
    "not tar": gzip.compress(b"not tar"),
    "zeros": gzip.compress(bytes(20480)),
}


# Named, as gzip writes the time into what it packs: each of pytest's workers would have names of its own.
@pytest.mark.parametrize("content", NO_PACKS.values(), ids=NO_PACKS)
def test_unpack_says_so_when_a_file_is_no_pack(tmp_path, content):
    (tmp_path / "p").write_bytes(content)
    assert refused(tmp_path / "p", tmp_path)


def test_a_pipe_a_folder_and_a_missing_file_are_no_packs(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing"):
        with pytest.raises(RecordError), unpack.opened(tmp_path / name):
            pass


def test_the_digest_is_of_the_whole_file_and_checked_first(tmp_path):
    pack = packs.by_hand(tmp_path / "p", b"{nonsense", packs.member(FILE))
    with unpack.opened(pack) as file:
        with pytest.raises(RecordError, match="not the expected pack"):
            unpack.refuse_digest(file, "0" * 64, "p")
        with pytest.raises(UsageError, match="not a SHA-256"):
            unpack.refuse_digest(file, "123", "p")
        unpack.refuse_digest(file, hashlib.sha256(pack.read_bytes()).hexdigest().upper(), "p")
        assert file.tell() == 0


def test_files_that_are_there_stay_and_the_others_join_them(tmp_path):
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"a": b"new", "sub/b": b"new"}))
    there = packs.fill(tmp_path / "cache", {"a": b"old", "sub/c": b"old"})
    done = take(tmp_path / "p", there)
    assert packs.files_of(there) == {"a": b"old", "sub/b": b"new", "sub/c": b"old"}
    assert (done.num_new, done.num_kept) == (1, 1)


def test_unpack_moves_files_when_the_file_system_has_no_hard_links(tmp_path, monkeypatch):
    def no_links(*_, **__):
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(unpack.os, "link", no_links)
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"a": b"new", "b": b"new"}))
    there = packs.fill(tmp_path / "cache", {"a": b"old"})
    take(tmp_path / "p", there)
    assert packs.files_of(there) == {"a": b"old", "b": b"new"}


def test_a_link_in_the_cache_leads_nothing_out_of_it(tmp_path):
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"sub/b": b"new"}))
    (tmp_path / "cache").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache/sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CannotRunHere, match="not a folder"):
        take(tmp_path / "p", tmp_path / "cache")
    assert packs.names_in(tmp_path / "elsewhere") == []


def test_a_cache_of_another_user_is_not_written_to(tmp_path, monkeypatch):
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"b": b"new"}))
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(unpack.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CannotRunHere, match="another user"):
        take(tmp_path / "p", tmp_path / "cache")


def test_a_disk_that_fills_up_leaves_nothing(tmp_path, monkeypatch):
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"a": b"1", "b": b"2"}))
    extract, taken = tarfile.TarFile.extract, []

    def full(archive, member, *where, **how):
        if taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken.append(member.name)
        extract(archive, member, *where, **how)

    monkeypatch.setattr(tarfile.TarFile, "extract", full)
    assert "No space left" in refused(tmp_path / "p", tmp_path)


KILLED = """
import io, os, signal, sys
from pathlib import Path
from dynotune.launch.caches import Place, pack, unpack
from dynotune.schema.cache_pack import Conditions

def end(*args, **more):
    os.kill(os.getpid(), signal.SIGKILL)

class Ending(io.BufferedReader):
    def read(self, size=-1):
        return end() if self.tell() > 2_000_000 else super().read(size)

file, place = Path(sys.argv[2]), Place("inductor", Path(sys.argv[3]))
if sys.argv[1] == "pack":
    pack.PackedFile = end  # the first file is written, and not yet listed
    pack.pack(file, [place], Conditions(), env={})
else:
    unpack.unpack(Ending(io.FileIO(file)), "p", [place])
"""


@pytest.mark.parametrize("what", ["pack", "unpack"])
def test_sweep_removes_what_a_killed_pack_or_unpack_left(tmp_path, monkeypatch, what):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    caches = packs.fill(tmp_path / "from", {"a": os.urandom(4_000_000)})
    packs.pack(tmp_path / "p", caches)
    home = tmp_path / "home"
    home.mkdir()
    where = [home / "new", caches] if what == "pack" else [tmp_path / "p", home / "cache"]
    words = [sys.executable, "-c", KILLED, what, *map(str, where)]
    ended = subprocess.run(words, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert sum(map(len, packs.files_of(home).values())) > 500_000
    assert sweep().num_bytes > 500_000
    assert list(home.iterdir()) == []


def test_tritons_lists_of_files_name_the_new_place(tmp_path):
    old = "/root/.triton/cache/KEY"
    group = {"child_paths": {"k.cubin": f"{old}/k.cubin", "k.json": f"{old}/k.json"}}
    content = {
        "KEY/__grp__k.json": json.dumps(group).encode(),
        "KEY/k.cubin": b"1",
        "KEY/k.json": b"{}",
        "o.json": b"{}",
    }
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", content))
    take(tmp_path / "p", tmp_path / "cache")
    moved = json.loads((tmp_path / "cache/KEY/__grp__k.json").read_bytes())["child_paths"]
    assert moved == {name: str(tmp_path / "cache/KEY" / name) for name in ("k.cubin", "k.json")}
    assert all(Path(path).is_file() for path in moved.values())


@pytest.mark.parametrize(
    "text", [b"[1]", b"{}", b"not json", b'{"child_paths": 3}', b'{"child_paths": {"../x": "/y"}}']
)
def test_a_list_of_files_of_another_kind_does_no_harm(tmp_path, text):
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"K/__grp__k.json": text}))
    take(tmp_path / "p", tmp_path / "cache")
    assert b"/y" not in (tmp_path / "cache/K/__grp__k.json").read_bytes()


def test_the_drivers_cache_is_taken_whole_or_not_at_all(tmp_path):
    """Its index cannot be merged: entries that it does not list are never found."""
    from dynotune.launch.caches import pack as cache_pack

    new = packs.fill(tmp_path / "from", {"index": b"new", "3/f/abc": b"code"})
    cache_pack.pack(tmp_path / "p", [packs.place("cuda", new)], packs.CONDITIONS, env={})
    there = packs.fill(tmp_path / "there", {"index": b"old", "1/2/def": b"code"})
    done = take(tmp_path / "p", there, "cuda")
    assert packs.files_of(there) == {"index": b"old", "1/2/def": b"code"}
    assert done.num_new == 0 and done.left_out and done.notes
    assert take(tmp_path / "p", tmp_path / "empty", "cuda").num_new == 2


def test_a_cache_on_another_file_system_than_the_folder_it_is_in_is_filled(tmp_path):
    """As a volume of a container is: no file can be renamed or linked into it from beside."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        if Path(elsewhere).stat().st_dev == tmp_path.stat().st_dev:
            pytest.skip("/dev/shm is on the file system of the temporary files")
        packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"a": b"new", "sub/b": b"new"}))
        packs.fill(Path(elsewhere), {"a": b"old"})
        (tmp_path / "cache").symlink_to(elsewhere)
        assert take(tmp_path / "p", tmp_path / "cache").num_new == 1
        assert packs.files_of(Path(elsewhere)) == {"a": b"old", "sub/b": b"new"}
        assert packs.names_in(Path(elsewhere)) == ["a", "sub"]


def test_a_python_whose_tar_knows_no_filters_is_refused(tmp_path, monkeypatch):
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"a": b"1"}))
    monkeypatch.delattr(tarfile, "data_filter")
    assert "no extraction filters" in refused(tmp_path / "p", tmp_path)


def test_a_file_is_as_readable_and_as_old_as_one_written_here(tmp_path):
    """A pack holds neither: tidying by age would take a cache that was just unpacked."""
    packs.pack(tmp_path / "p", packs.fill(tmp_path / "from", {"a": b"1"}))
    take(tmp_path / "p", tmp_path / "cache")
    packs.fill(tmp_path / "here", {"a": b"1"})
    unpacked, written = ((tmp_path / where / "a").stat() for where in ("cache", "here"))
    assert unpacked.st_mode == written.st_mode and unpacked.st_mtime > 1e9


def test_a_cache_without_a_place_is_left_out_with_its_files_checked_all_the_same(tmp_path):
    ours, other = packs.listed("a"), packs.listed("k", b"y" * 40_000, cache="triton")
    last = packs.member("files/0000001", b"y" * 40_000)
    pack = packs.by_hand(tmp_path / "p", packs.manifest(ours, other), packs.member(FILE), last)
    done = take(pack, tmp_path / "cache")
    assert packs.files_of(tmp_path / "cache") == {"a": b"x"}
    assert [left.cache for left in done.left_out] == ["triton"]
    wrong = packs.by_hand(
        tmp_path / "w",
        packs.manifest(ours, other),
        packs.member(FILE),
        packs.member("files/0000001", b"z" * 40_000),
    )
    assert "is not what its manifest says" in refused(wrong, tmp_path)
