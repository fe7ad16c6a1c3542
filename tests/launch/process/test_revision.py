"""A command sees its repository at another revision, and the repository stays as it is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dynotune.knobs import parse
from dynotune.launch import Seed, start
from dynotune.launch.process import revision, sandbox
from dynotune.schema.errors import CannotRunHere, UsageError

LISTS = """
import os, pathlib, sys
found = {}
for folder, folders, files in os.walk("."):
    folders[:] = [name for name in folders if name != ".git"]
    found |= {os.path.join(folder, name)[2:]: pathlib.Path(folder, name).read_text() for name in files}
pathlib.Path("made").write_text("1")
pathlib.Path("code.py").write_text("changed by the program")
pathlib.Path("data/big").write_text("overwritten")
print(sorted(found.items()), os.access("run.sh", os.X_OK))
"""


def test_a_git_that_does_not_end_is_not_waited_for_without_end(tmp_path, monkeypatch):
    (tmp_path / "git").write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(revision, "_GIT_S", 0.2)
    with pytest.raises(CannotRunHere, match="did not end"):
        revision.find(tmp_path, "main")


def git(cwd, *words):
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    return subprocess.run(
        ["git", "-C", str(cwd), *who, *words], check=True, capture_output=True, text=True
    ).stdout


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("now", ["link", "folder"])
def test_a_revision_is_shown_when_a_link_of_it_is_a_folder_elsewhere(cwd, tmp_path, now):
    """And a file outside of the folder to which the link leads stays."""
    if (reason := sandbox.available(cwd, tmp_path / "any")) is not None:
        pytest.skip(f"no copy-on-write view here: {reason}")
    outside = tmp_path / "outside"
    write(outside, {"x": "not of the repository"})

    def has(kind):
        if kind == "link":
            (cwd / "d").symlink_to(outside)
        else:
            write(cwd, {"d/x": "of the repository"})
        git(cwd, "add", "--all")
        git(cwd, "commit", "--quiet", "--message", kind)

    git(cwd, "init", "--quiet", "--initial-branch=main", ".")
    has("folder" if now == "link" else "link")
    git(cwd, "branch", "old")
    git(cwd, "rm", "-r", "--quiet", "d")
    has(now)
    found = revision.find(cwd, "old")
    revision.export(found, tmp_path / "files")
    code = "import os; print(os.path.islink('d'), open('d/x').read())"
    seed = Seed(found.root, tmp_path / "files", found.gone)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    command = [sys.executable, "-c", code]
    with start(
        command, env=dict(os.environ), cwd=cwd, run_dir=run_dir, sandbox="auto", seed=seed
    ) as launched:
        assert launched.wait(60).code == 0
    said = {"link": "False of the repository\n", "folder": "True not of the repository\n"}
    assert (run_dir / "stdout").read_text() == said[now]
    assert (outside / "x").read_text() == "not of the repository"


def test_git_runs_no_hook_and_no_monitor_of_the_repository(cwd):
    git(cwd, "init", "--quiet", "--initial-branch=main", ".")
    write(cwd, {"code.py": "old"})
    git(cwd, "add", "--all")
    git(cwd, "commit", "--quiet", "--message", "old")
    write(cwd, {"code.py": "new"})
    hook = cwd / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hook-ran\n")
    hook.chmod(0o755)
    git(cwd, "config", "core.fsmonitor", "touch monitor-ran; false")
    found = revision.find(cwd, "HEAD")
    revision.export(found, cwd.parent / "files")
    assert not list(cwd.glob("*-ran")) and found.differing == ["code.py"]


def signed(cwd):
    """Make the commit `signed`, with a signature that a program of the repository's would be asked about."""
    tree, parent = (git(cwd, "rev-parse", name).strip() for name in ("HEAD^{tree}", "HEAD"))
    who = "somebody <somebody@example.com> 1700000000 +0000"
    signature = "-----BEGIN PGP SIGNATURE-----\n \n iQ\n -----END PGP SIGNATURE-----"
    text = f"tree {tree}\nparent {parent}\nauthor {who}\ncommitter {who}\ngpgsig {signature}\n\nsigned\n"
    words = ["git", "-C", str(cwd), "hash-object", "-t", "commit", "-w", "--stdin"]
    done = subprocess.run(words, input=text, check=True, capture_output=True, text=True)
    git(cwd, "branch", "signed", done.stdout.strip())


@pytest.mark.parametrize("place", ["repository", "worktree"])
def test_git_runs_no_program_that_the_configuration_names_when_a_revision_is_read(cwd, tmp_path, place):
    git(cwd, "init", "--quiet", "--initial-branch=main", ".")
    write(cwd, {"code.py": "old", ".gitattributes": "* diff=other"})
    git(cwd, "add", "--all")
    git(cwd, "commit", "--quiet", "--message", "old")
    signed(cwd)
    if place == "worktree":
        git(cwd, "worktree", "add", "--quiet", str(tmp_path / "beside"))
        cwd = tmp_path / "beside"
    write(cwd, {"code.py": "new"})
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/$(basename $0)-ran\n")
    program.chmod(0o755)
    git(cwd, "config", "log.showSignature", "true")
    names = ("gpg.program", "core.fsmonitor", "core.pager", "diff.external", "diff.other.textconv")
    for name in (*names, "diff.other.command", "core.editor", "core.sshCommand"):
        git(cwd, "config", name, str(program))
    found = revision.find(cwd, "signed")
    revision.export(found, tmp_path / "files")
    assert [found.commit] == [revision.between(cwd, "main", "signed")[-1].hash]
    assert revision.described(cwd, found.commit)
    revision.commit_with(cwd, {"code.py": b"edited"}, "edited")
    assert not list(tmp_path.rglob("*-ran")) and found.differing == ["code.py"]


def test_git_fetches_nothing_when_a_file_of_the_revision_is_missing(cwd, tmp_path):
    git(cwd, "init", "--quiet", "--initial-branch=main", ".")
    write(cwd, {"code.py": "old"})
    git(cwd, "add", "--all")
    git(cwd, "commit", "--quiet", "--message", "old")
    blob = git(cwd, "rev-parse", "HEAD:code.py").strip()
    write(cwd, {"code.py": "new"})
    (cwd / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    for name, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": f"ext::sh -c touch% {tmp_path}/fetch-ran",
        "protocol.ext.allow": "always",
    }.items():
        git(cwd, "config", name, value)
    with pytest.raises(UsageError, match="has not fetched all files") as refused:
        revision.export(revision.find(cwd, "HEAD"), tmp_path / "files")
    assert "git diff" in str(refused.value.hint) and not list(tmp_path.glob("*-ran"))


def test_a_repository_is_found_when_its_folders_name_ends_with_a_blank(tmp_path):
    cwd = tmp_path / "project "
    cwd.mkdir()
    git(cwd, "init", "--quiet", "--initial-branch=main", ".")
    write(cwd, {"code.py": "old"})
    git(cwd, "add", "--all")
    git(cwd, "commit", "--quiet", "--message", "old")
    write(cwd, {"code.py": "new"})
    found = revision.find(cwd, "HEAD")
    assert (found.root, found.differing, revision.top_level(cwd)) == (cwd, ["code.py"], cwd)


def test_git_asks_no_submodule_when_a_revision_is_read(cwd, tmp_path):
    """Its configuration names programs, too; and what is changed in it, both arms see."""
    git(cwd, "init", "--quiet", "--initial-branch=main", ".")
    part = tmp_path / "part"
    part.mkdir()
    git(part, "init", "--quiet", "--initial-branch=main", ".")
    write(part, {"inner.py": "1"})
    git(part, "add", "--all")
    git(part, "commit", "--quiet", "--message", "part")
    write(cwd, {"code.py": "old"})
    git(cwd, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(part), "part")
    git(cwd, "add", "--all")
    git(cwd, "commit", "--quiet", "--message", "old")
    write(cwd, {"code.py": "new", "part/inner.py": "2"})
    git(cwd / "part", "config", "core.fsmonitor", f"touch {tmp_path}/monitor-ran; false")
    assert revision.find(cwd, "HEAD").differing == ["code.py"]
    assert not list(tmp_path.glob("*-ran"))


@pytest.fixture
def repository(cwd):
    """`old` and the working tree differ in every way that files can; `data` is not tracked."""
    git(cwd, "init", "--quiet", "--initial-branch=main", ".")
    write(
        cwd,
        {
            ".gitignore": "data/\n",
            "code.py": "old",
            "only_old.py": "1",
            "run.sh": "#!/bin/sh",
            "pkg/a.py": "1",
        },
    )
    (cwd / "run.sh").chmod(0o755)
    git(cwd, "add", "--all")
    git(cwd, "commit", "--quiet", "--message", "The old one")
    git(cwd, "branch", "old")
    git(cwd, "rm", "--quiet", "only_old.py", "pkg/a.py")
    write(cwd, {"code.py": "new", "new/deep.py": "1", "data/big": "kept"})
    (cwd / "run.sh").chmod(0o644)
    git(cwd, "add", "--all")
    git(cwd, "commit", "--quiet", "--message", "The new one")
    write(cwd, {"code.py": "newer", "untracked.py": "1"})
    return cwd


def test_revision_lists_files_that_differ_from_the_working_tree_and_its_changes(repository):
    found = revision.find(repository, "old")
    assert sorted(found.differing) == ["code.py", "only_old.py", "pkg/a.py", "run.sh"]
    assert found.gone == ["new/deep.py"]
    assert (found.subject, found.is_dirty, found.root) == ("The old one", True, repository.resolve())
    assert found.commit == git(repository, "rev-parse", "old").strip()


def test_the_command_sees_the_revision_and_nothing_of_the_repository_changes(repository, run_dir):
    if (reason := sandbox.available(repository, run_dir)) is not None:
        pytest.skip(f"no copy-on-write view here: {reason}")
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    found = revision.find(repository, "old")
    revision.export(found, run_dir / "revision")
    launched = start(
        [sys.executable, "-c", LISTS], env=dict(os.environ), cwd=repository, run_dir=run_dir,
        sandbox="auto", seed=Seed(found.root, run_dir / "revision", found.gone),
    )  # fmt: skip
    with launched:
        assert launched.wait(120).code == 0, (run_dir / "stderr").read_text()
    seen, executable = (run_dir / "stdout").read_text().strip().rsplit(" ", 1)
    assert dict(eval(seen)) == {
        ".gitignore": "data/\n", "code.py": "old", "only_old.py": "1", "run.sh": "#!/bin/sh", "pkg/a.py": "1",
        "data/big": "kept", "untracked.py": "1",
    }  # fmt: skip
    assert executable == "True"
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before
    # What the program itself did is listed, and only that.
    assert launched.changed_files == ["code.py", "data/big", "made"]


def test_a_folder_below_the_repositorys_root_sees_its_own_part(repository, run_dir):
    if (reason := sandbox.available(repository, run_dir)) is not None:
        pytest.skip(f"no copy-on-write view here: {reason}")
    (repository / "pkg").mkdir(exist_ok=True)
    found = revision.find(repository / "pkg", "old")
    revision.export(found, run_dir / "revision")
    seed = Seed(found.root, run_dir / "revision", found.gone)
    words = ["cat", "a.py", "../code.py"]
    place = {"cwd": repository / "pkg", "run_dir": run_dir, "sandbox": "auto", "seed": seed}
    with start(words, env=dict(os.environ), **place) as launched:
        assert launched.wait(120).code == 0
    assert (run_dir / "stdout").read_text() == "1old"


def test_a_revision_that_is_not_there_or_is_the_working_tree_is_refused(repository, tmp_path):
    for name in ("nowhere", "--help", ""):
        with pytest.raises(UsageError, match="git knows no revision"):
            revision.find(repository, name)
    git(repository, "checkout", "--quiet", "--", ".")
    with pytest.raises(UsageError, match="baseline and candidate would be the same"):
        revision.find(repository, "main")
    with pytest.raises(UsageError, match="not a git repository"):
        revision.find(tmp_path, "main")


def test_a_submodule_that_differs_is_refused(repository, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet", ".")
    git(other, "commit", "--quiet", "--allow-empty", "--message", "Its own")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")
    git(repository, "commit", "--quiet", "--message", "With a submodule")
    with pytest.raises(UsageError, match="submodule sub"):
        revision.find(repository, "old")


def test_without_a_copy_on_write_view_no_revision_can_be_shown(repository, run_dir):
    with pytest.raises(CannotRunHere, match="only be shown in a copy-on-write view"):
        revision.refuse_unseen(revision.find(repository, "old"), run_dir, sandbox=False)


def test_a_branch_stays_the_commit_that_it_was_when_the_measurement_began():
    settings = [parse("git.ref=main")]
    assert revision.pinned(settings, {}) == "main"
    assert revision.pinned(settings, {"git.main": "1234"}) == "1234"
    assert revision.pinned([], {"git.main": "1234"}) is None
