"""A measured command writes to a copy; the folder stays as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dynotune.launch import start
from dynotune.launch.process import sandbox
from dynotune.schema.errors import CannotRunHere

from ..conftest import SOURCE, until

# Everything a program may do to the files of a folder, most of it beside what stays.
WORKS = """
import os, pathlib, shutil
pathlib.Path("changed").write_text("now longer")
pathlib.Path("touched").open("r+").close()
pathlib.Path("gone").unlink()
pathlib.Path("out/deep").mkdir(parents=True)
pathlib.Path("out/deep/new").write_text("1")
pathlib.Path("empty").mkdir()
shutil.rmtree("replaced")
os.mkdir("replaced")
pathlib.Path("replaced/new").write_text("1")
pathlib.Path("replaced/again").write_text("other")
pathlib.Path("was_file").unlink()
pathlib.Path("was_file").mkdir()
pathlib.Path("was_folder/a").unlink()
os.rmdir("was_folder")
pathlib.Path("was_folder").write_text("1")
os.symlink("nowhere", "link")
os.mkdir("locked", 0o700)
pathlib.Path("locked/in").write_text("1")
os.chmod("locked", 0o500)
print(sorted(os.listdir(".")), os.getuid(), os.getgid(), os.stat(".").st_uid)
"""
CREATED = ("empty/", "link", "locked/in", "out/deep/new", "replaced/new", "was_file/", "was_folder")

# Runs `start` for one who is not root: cwd, base of run folders.
AS_SOMEONE = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from dynotune import launch
run_dir = launch.new_run_folder(Path(sys.argv[3]))
command = ["/usr/bin/python3", "-c", sys.argv[4], str(run_dir)]
paths = {"cwd": Path(sys.argv[2]), "run_dir": run_dir}
with launch.start(command, env=dict(os.environ), sandbox="auto", **paths) as launched:
    launched.wait()
print(json.dumps([launched.sandbox, launched.sandbox_reason, launched.changes, str(run_dir)]))
"""


@pytest.fixture
def project(cwd):
    for name in ("changed", "touched", "gone", "was_file", "replaced/old", "replaced/again", "was_folder/a"):
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).write_text("before")
    (cwd / "data").mkdir()
    (cwd / "data" / "sample").write_text("kept")
    return cwd


def contents(folder):
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in folder.rglob("*")
    }


def need_overlay(cwd, run_dir):
    if (reason := sandbox.available(cwd, run_dir)) is not None:
        pytest.skip(f"no copy-on-write view here: {reason}")


def sandboxed(words, *, cwd, run_dir, **more):
    with start(words, env=dict(os.environ), cwd=cwd, run_dir=run_dir, sandbox="auto", **more) as launched:
        exit_ = launched.wait(120)
    assert exit_.code == 0, (run_dir / "stderr").read_text()
    return launched


def test_the_folder_stays_as_it_was_and_what_was_done_is_listed(project, run_dir):
    need_overlay(project, run_dir)
    before = contents(project)
    launched = sandboxed([sys.executable, "-c", WORKS], cwd=project, run_dir=run_dir)
    assert contents(project) == before
    assert launched.sandbox == "overlay"
    assert launched.sandbox_reason == ""
    assert launched.changes.created == CREATED
    assert "changed" in launched.changes.changed
    assert "touched" not in launched.changes.paths
    assert set(launched.changes.deleted) >= {"gone", "replaced/old", "was_folder/a"}
    assert sorted(path.name for path in run_dir.iterdir()) == ["stderr", "stdout"]


def test_the_scan_without_a_view_says_the_same(project, run_dir):
    with start([sys.executable, "-c", WORKS], env=dict(os.environ), cwd=project, run_dir=run_dir) as launched:
        assert launched.wait(120).code == 0
    assert launched.changes.created == CREATED
    assert {"changed"} <= set(launched.changes.changed)
    assert {"gone", "replaced/old", "was_folder/a"} <= set(launched.changes.deleted)


def test_a_folder_of_the_users_can_be_renamed(project, run_dir):
    need_overlay(project, run_dir)
    launched = sandboxed(["mv", "replaced", "renamed"], cwd=project, run_dir=run_dir)
    assert (project / "replaced" / "old").exists()
    assert "replaced/old" in launched.changes.deleted


LINKS = "import os; open('one', 'a').write('more'); print(open('two').read(), os.path.samefile('one', 'two'))"


def test_two_names_of_one_file_stay_that_when_it_is_written(project, run_dir):
    (project / "one").write_text("before ")
    (project / "two").hardlink_to(project / "one")
    need_overlay(project, run_dir)
    sandboxed([sys.executable, "-c", LINKS], cwd=project, run_dir=run_dir)
    assert (run_dir / "stdout").read_text() == "before more True\n"
    assert (project / "two").read_text() == "before "


NAMES = """
import os
os.rename("moved", "moved away")
for name in ("one", "moved away"):
    open(name, "a").write("more")
open("touched", "a").close()
open("new", "w").write("new")
os.replace("new", "replaced")
os.replace("other", "covered")
"""


def test_every_name_of_a_file_that_is_written_is_listed_and_no_name_of_another(cwd, run_dir):
    for name in ("one", "touched", "replaced", "moved", "other", "covered"):
        (cwd / name).write_text("before ")
        (cwd / "links" / name).mkdir(parents=True)
        (cwd / "links" / name / "second").hardlink_to(cwd / name)
        (cwd / "links" / name / "third").hardlink_to(cwd / name)
    need_overlay(cwd, run_dir)
    changes = sandboxed([sys.executable, "-c", NAMES], cwd=cwd, run_dir=run_dir).changes
    written = [f"links/{name}/{which}" for name in ("moved", "one") for which in ("second", "third")]
    assert list(changes.changed) == ["covered", *written, "one", "replaced"]
    assert (changes.created, changes.deleted) == (("moved away",), ("moved", "other"))


def test_a_run_folder_below_the_working_directory_is_written_for_real(project):
    from dynotune.launch import new_run_folder

    run_dir = new_run_folder(project / "runs")
    cache = project / "cache"
    cache.mkdir()
    need_overlay(project, run_dir)
    code = "import sys, pathlib\nfor f in (*sys.argv[1:], '.'): pathlib.Path(f, 'made').write_text('1')\n"
    words = [sys.executable, "-c", code, str(run_dir), str(cache)]
    launched = sandboxed(words, cwd=project, run_dir=run_dir, keep=[cache])
    assert launched.sandbox == "overlay"
    assert (run_dir / "made").exists()
    assert (cache / "made").exists()
    assert not (project / "made").exists()
    assert launched.changed_files == ["made"]


def test_names_that_mount_options_would_trip_over_are_fine(tmp_path, run_dir):
    odd = tmp_path / "a,b:c\\d e\n\udcff"
    odd.mkdir()
    need_overlay(odd, run_dir)
    launched = sandboxed(["touch", "new"], cwd=odd, run_dir=run_dir)
    assert launched.changed_files == ["new"]
    assert list(odd.iterdir()) == []


def test_nothing_is_mounted_outside_the_command(project, run_dir, tmp_path_factory):
    def mounted():
        mine = tmp_path_factory.getbasetemp()
        # Another process that runs tests beside this one has a folder beside this one, and mounts there.
        others = f"{mine.parent}/" if mine.name.startswith("popen-") else "//"
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if f" {others}" not in line or f" {mine}/" in line]

    before = mounted()
    sandboxed(["true"], cwd=project, run_dir=run_dir)
    assert mounted() == before


def test_the_root_of_all_files_is_not_covered_and_the_reason_is_said(run_dir):
    assert "root" in sandbox.available(Path("/"), run_dir)


def test_the_copies_are_gone_when_the_command_cannot_be_started(project, run_dir):
    need_overlay(project, run_dir)
    (project / "job").write_text("#!/nowhere/python\n")
    (project / "job").chmod(0o755)
    with pytest.raises(Exception, match="interpreter"):
        sandboxed(["./job"], cwd=project, run_dir=run_dir)
    assert sorted(path.name for path in run_dir.iterdir()) == ["stderr", "stdout"]


def test_copies_are_removed_by_the_supervisor_when_dynotune_dies_after_the_command(
    project, run_dir, measures, marked
):
    need_overlay(project, run_dir)
    # The command ends at once, and dynotune is killed at whatever point of the end it has reached.
    dynotune = measures("touch", "new", sandbox="auto")
    dynotune.kill()
    marked.wait_until_gone()
    assert sorted(path.name for path in run_dir.iterdir()) == ["stderr", "stdout"]


def test_a_view_that_fails_after_all_is_said(project, run_dir, monkeypatch):
    need_overlay(project, run_dir)
    view = sandbox.prepare(project, run_dir)._replace(keep=[str(project / "nowhere")])
    monkeypatch.setattr("dynotune.launch.process.launcher.prepare", lambda *_: view)
    with pytest.raises(CannotRunHere, match="No copy-on-write view"):
        sandboxed(["true"], cwd=project, run_dir=run_dir)
    assert not Path(view.scratch).exists()


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_proof_leaves_files_of_every_kind_as_they_are(umask, project, run_dir):
    need_overlay(project, run_dir)
    for number, mode in enumerate((0o400, 0o444, 0o600, 0o664, 0o755)):
        (project / f"file{number}").write_text("before")
        (project / f"file{number}").chmod(mode)
        (project / f"folder{number}").mkdir()
        (project / f"folder{number}" / "inside").write_text("before")
        (project / f"folder{number}").chmod(mode | 0o2100)
    (project / "link").symlink_to("file0")
    os.mkfifo(project / "fifo")
    os.link(project / "file1", project / "second name")
    before, old = contents(project), os.umask(umask)
    sandbox._find_place.cache_clear()
    try:
        assert sandbox.available(project, run_dir) is None
    finally:
        os.umask(old)
    assert contents(project) == before
    assert list(run_dir.parent.iterdir()) == [run_dir]


def test_a_folder_that_is_read_only_needs_no_view_and_stays_read_only(project, tmp_path):
    script = 'mount --bind "$1" "$1"; mount -o remount,ro,bind "$1"; exec "$2" -c "$3" "$4" "$1" "$5" "$6"'
    code = (
        "import errno\ntry:\n  open('new', 'w')\nexcept OSError as error:\n  assert error.errno == "
        "errno.EROFS"
    )
    code += "\n  print('refused')"
    words = [str(project), sys.executable, AS_SOMEONE, SOURCE, str(tmp_path / "runs"), code]
    kind, reason, _, run_dir = as_root_in_a_namespace(script, *words)
    assert (kind, "only in the view" in reason) == ("none", True), reason
    assert Path(run_dir, "stdout").read_text() == "refused\n"


def as_root_in_a_namespace(script, *words):
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    done = subprocess.run(
        ["unshare", "-m", "bash", "-ec", script, "bash", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_file_system_mounted_below_stays_visible(project, tmp_path):
    script = 'mount -t tmpfs t "$1/data"; echo 1 > "$1/data/mounted"; exec "$2" -c "$3" "$4" "$1" "$5" "$6"'
    seen = "import os, sys; open('new', 'w'); open(sys.argv[1] + '/seen', 'w').write(str(os.listdir('data')))"
    words = [str(project), sys.executable, AS_SOMEONE, SOURCE, str(tmp_path / "runs"), seen]
    kind, reason, changes, run_dir = as_root_in_a_namespace(script, *words)
    assert (kind, reason, changes[0]) == ("overlay", "", ["new"])
    assert Path(run_dir, "seen").read_text() == "['mounted']"


def test_copies_go_elsewhere_when_the_run_folder_cannot_hold_them(project, tmp_path):
    # An overlay is no place for the upper layer of another one.
    script = """
mkdir "$5" "$5.upper" "$5.work"
mount -t overlay o -o lowerdir="$5",upperdir="$5.upper",workdir="$5.work" "$5"
exec "$2" -c "$3" "$4" "$1" "$5" "$6"
"""
    words = [str(project), sys.executable, AS_SOMEONE, SOURCE, str(tmp_path / "runs"), "open('new', 'w')"]
    kind, _, changes, _ = as_root_in_a_namespace(script, *words)
    assert (kind, changes[0]) == ("overlay", ["new"])
    assert not (project / "new").exists()


class TestWithoutPrivileges:
    """As nobody in particular, in a folder of their own, with an interpreter that anyone may start."""

    @pytest.fixture
    def someone(self):
        import tempfile

        if os.geteuid() != 0 or shutil.which("setpriv") is None or not Path("/usr/bin/python3").exists():
            pytest.skip("needs root, setpriv and /usr/bin/python3 to become someone else")
        base = Path(tempfile.mkdtemp(prefix="dynotune-test-"))
        base.chmod(0o777)
        if subprocess.run([*self.become(), "/usr/bin/test", "-r", f"{SOURCE}/dynotune"], cwd="/").returncode:
            pytest.skip("another user may not read the source")
        yield base
        shutil.rmtree(base, ignore_errors=True)

    @staticmethod
    def become(*groups):
        more = [f"--groups={','.join(groups)}"] if groups else ["--clear-groups"]
        return ["setpriv", "--reuid", "65534", "--regid", "65534", *more]

    def run(self, base, code, *, setup="", as_root="", groups=(), capability=""):
        prepare = f"mkdir -p project/data runs; {setup}"
        subprocess.run([*self.become(), "sh", "-c", prepare], cwd=base, check=True)
        subprocess.run(["sh", "-ec", as_root], cwd=base, check=True)
        words = ["/usr/bin/python3", "-c", AS_SOMEONE, SOURCE, "project", "runs", code]
        kept = [f"--{which}-caps=+{capability}" for which in ("inh", "ambient") if capability]
        done = subprocess.run(
            [*self.become(*groups), *kept, *words], cwd=base, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        kind, reason, changes, run_dir = json.loads(done.stdout)
        if kind == "none" and "user namespace" in reason:
            pytest.skip(f"this kernel refuses: {reason}")
        return kind, reason, changes, base / run_dir

    def test_a_user_namespace_keeps_the_folder_as_it_was(self, someone):
        files = "cd project; mkdir replaced was_folder; for f in changed touched gone was_file replaced/old "
        files += "replaced/again was_folder/a; do echo before > $f; done"
        kind, _, changes, run_dir = self.run(someone, WORKS, setup=files)
        assert kind == "overlay", (run_dir / "stderr").read_text()
        assert "65534 65534 65534" in (run_dir / "stdout").read_text(), "it sees itself as who it is"
        assert tuple(changes[0]) == CREATED
        assert set(changes[2]) >= {"gone", "replaced/old", "was_folder/a"}
        assert (someone / "project" / "gone").exists()
        assert not (someone / "project" / "empty").exists()
        assert sorted(path.name for path in run_dir.iterdir()) == ["stderr", "stdout"]

    @pytest.mark.parametrize(
        ("as_root", "names"),
        [
            ("chgrp 54321 project project/own; chmod 2775 project", "own"),
            ("mkdir project/shared; chown 65534:54321 project/shared; chmod 2775 project/shared", "shared"),
            ("echo 1 > project/theirs; chown 0:54321 project/theirs; chmod 664 project/theirs", "theirs"),
            ("chgrp 54321 project/own; chmod 444 project/own", "own"),
        ],
        ids=[
            "a folder of a group",
            "a folder of a group below",
            "another's file",
            "a file that is read-only",
        ],
    )
    def test_sandbox_has_no_view_when_files_of_a_group_could_not_be_changed(self, as_root, names, someone):
        code = "import os, pathlib\nfor p in pathlib.Path('.').iterdir():\n"
        code += "  os.chmod(p, 0o775) if p.owner() == 'nobody' else None\n"
        code += "  (p / 'new' if p.is_dir() else p).open('a').write('x')\nprint('done')"
        kind, reason, changes, run_dir = self.run(
            someone, code, setup="echo 1 > project/own", as_root=as_root, groups=("54321",)
        )
        assert (kind, names in reason) == ("none", True), reason
        assert (run_dir / "stdout").read_text() == "done\n", (run_dir / "stderr").read_text()
        assert changes[0] or changes[1]

    def test_a_folder_that_the_user_may_not_write_is_not_writable_in_a_run(self, someone):
        code = "try:\n  open('new', 'w')\nexcept PermissionError:\n  print('refused')"
        kind, _, _, run_dir = self.run(someone, code, as_root="chown 0:0 project; chmod 755 project")
        assert kind == "none"
        assert (run_dir / "stdout").read_text() == "refused\n"

    def test_sandbox_has_no_view_when_two_names_of_one_file_would_become_two_files(self, someone):
        kind, reason, _, run_dir = self.run(
            someone, LINKS, setup="cd project; echo -n before > one; ln one two"
        )
        assert (kind, "another file than" in reason) == ("none", True), reason
        assert (run_dir / "stdout").read_text() == "beforemore True\n"

    def test_files_of_others_that_the_user_may_only_read_do_not_cost_the_view(self, someone):
        theirs = "echo 1 > project/theirs; mkdir -m 755 project/also; mkdir -m 700 project/no"
        kind, reason, changes, _ = self.run(someone, "open('new', 'w')", as_root=theirs)
        assert (kind, changes[0]) == ("overlay", ["new"]), reason

    def test_sandbox_has_no_view_and_shows_files_that_only_a_capability_can_read(self, someone):
        code, theirs = (
            "print(open('theirs').read())",
            "echo secret > project/theirs; chmod 600 project/theirs",
        )
        kind, reason, _, run_dir = self.run(someone, code, as_root=theirs, capability="dac_read_search")
        assert (kind, "capability" in reason) == ("none", True), reason
        assert (run_dir / "stdout").read_text() == "secret\n\n"

    def test_nothing_is_left_of_a_killed_one(self, someone, marked):
        subprocess.run([*self.become(), "mkdir", "project", "runs"], cwd=someone, check=True)
        code = "import os, signal\nif os.fork() == 0:\n os.setsid()\n"
        code += "open('up', 'w')\nprint('up', flush=True)\nsignal.pause()"
        words = [*self.become(), "/usr/bin/python3", "-c", AS_SOMEONE, SOURCE, "project", "runs", code]
        with subprocess.Popen(words, cwd=someone, env=marked.env) as dynotune:
            until(lambda: [p for p in someone.glob("runs/*/stdout") if "up" in p.read_text()], "at work")
            dynotune.kill()
        marked.wait_until_gone()
        (run_dir,) = (someone / "runs").iterdir()
        until(lambda: sorted(p.name for p in run_dir.iterdir()) == ["stderr", "stdout"], "copies removed")
        assert not (someone / "project" / "up").exists()

    def test_a_file_system_mounted_below_is_a_reason_not_to(self, someone):
        script = 'mount -t tmpfs t "$1/project/data"; chmod 777 "$1/project/data"; cd "$1"; shift; exec "$@"'
        subprocess.run([*self.become(), "mkdir", "-p", "project/data", "runs"], cwd=someone, check=True)
        words = [
            *self.become(),
            "/usr/bin/python3",
            "-c",
            AS_SOMEONE,
            SOURCE,
            "project",
            "runs",
            "open('new', 'w')",
        ]
        kind, reason, changes, _ = as_root_in_a_namespace(script, str(someone), *words)
        assert kind == "none"
        assert "data is a file system of its own" in reason or "namespace" in reason
        assert changes[0] == ["new"]
