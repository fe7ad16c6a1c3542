"""The lines of points between two ends: commits, versions, and differences of two files."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from dynotune.bisect.differences import Differences
from dynotune.bisect.ends import line_of
from dynotune.bisect.line import NotMade
from dynotune.bisect.packages import Environments, Versions
from dynotune.bisect.revisions import Revisions
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Unknown
from dynotune.schema.run import RunSpec
from lab.bisected import commit, git

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A repository with a merge, a rename and five steps on its main line."""
    folder = tmp_path_factory.mktemp("history")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    for number in range(3):
        (folder / "train.py").write_text(f"print({number})\n" * 5)
        commit(folder, f"Change {number}")
        git(folder, "tag", f"v{number}")
    git(folder, "checkout", "--quiet", "-b", "side", "v1")
    for name in ("x", "y"):
        (folder / name).write_text(name)
        commit(folder, f"Add {name}")
    git(folder, "checkout", "--quiet", "main")
    git(folder, "merge", "--quiet", "--no-ff", "side", "--message", "Merge side")
    git(folder, "mv", "train.py", "main.py")
    commit(folder, "Rename the program")
    return folder


def run_in(folder, *command):
    return RunSpec(command=list(command or (sys.executable, "main.py")), cwd=folder, env={}, base=folder)


@needs_git
def test_line_of_commits_follows_first_parents_when_there_is_a_merge(history):
    line = Revisions("v0", "main", history)
    assert [point.title for point in line.points] == [
        "Change 0",
        "Change 1",
        "Change 2",
        "Merge side",
        "Rename the program",
    ]
    assert line.points[3].num_parents == 2


@needs_git
def test_commit_is_a_setting_unless_the_working_tree_holds_it(history):
    line = Revisions("v0", "main", history)
    assert line.settings(4) == []
    (setting,) = line.settings(0)
    assert str(setting) == f"git.ref={git(history, 'rev-parse', 'v0').strip()}"


@needs_git
def test_change_of_a_commit_names_author_files_and_renames(history):
    line = Revisions("v0", "main", history)
    text = "\n".join(line.changed(3, 4))
    assert text.startswith("a, 20") and "train.py => main.py" in text
    assert [entry.split(maxsplit=1)[1] for entry in line.changed(1, 3)] == ["Change 2", "Merge side"]


@needs_git
def test_merge_says_how_to_search_in_what_it_brought_in(history):
    line = Revisions("v0", "main", history)
    good, bad = (git(history, "rev-parse", ref).strip()[:12] for ref in ("v1", "side"))
    assert line.next_command(3) == ["--good", f"git.ref={good}", "--bad", f"git.ref={bad}"]
    assert line.next_command(2) == []


@needs_git
def test_line_is_refused_when_the_good_end_lacks_the_commands_file(history, tmp_path):
    said = r"main\.py is not in .*\(Change 0\).*\(Rename the program\)"
    with pytest.raises(UsageError, match=said) as error:
        line_of("git.ref=v0", "git.ref=main", run_in(history), tmp_path)
    rename = git(history, "rev-parse", "main").strip()
    assert error.value.hint == f"Search from there: --good git.ref={rename[:12]}"


@needs_git
def test_line_has_a_caution_when_the_good_end_lacks_a_file_that_is_no_program(history):
    revisions = Revisions("v1", "main", history)
    revisions.refuse_absent(["python", "-m", "train", "--data", "x", "y" * 300])
    (caution,) = revisions.cautions
    assert "x is not in" in caution and "Merge side" in caution


@needs_git
def test_line_is_refused_when_the_good_end_is_on_another_branch(history):
    with pytest.raises(UsageError, match="not in the history of main") as error:
        Revisions("side", "main", history)
    assert git(history, "rev-parse", "side").strip()[:12] in error.value.hint


@needs_git
@pytest.mark.parametrize(
    ("good", "bad", "why"),
    [
        ("git.ref=v0", "package.x=1", "no ends of one kind"),
        ("package.x=1", "package.y=1", "no ends of one kind"),
        ("git.ref=v0", "git.ref=v0", "Both ends are the same"),
        ("a.json", "b.json", "no ends of one kind"),
        ("git.ref=nothing", "git.ref=v1", "knows no revision 'nothing'"),
        ("git.ref=-x", "git.ref=v1", "knows no revision '-x'"),
    ],
)
def test_ends_are_refused_when_they_make_no_line(history, tmp_path, good, bad, why):
    with pytest.raises(UsageError, match=why):
        line_of(good, bad, run_in(history), tmp_path)


@needs_git
def test_line_and_change_are_plain_text_when_subjects_and_configuration_are_unusual(tmp_path):
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    git(tmp_path, "config", "color.ui", "always")
    for number, subject in enumerate(("First", "Two\u2028lines", "Form\x0cfeed")):
        (tmp_path / "train.py").write_text(f"print({number})\n")
        commit(tmp_path, subject)
    line = Revisions("HEAD~2", "main", tmp_path)
    assert [point.title for point in line.points] == ["First", "Two\u2028lines", "Form\x0cfeed"]
    assert "train.py | 2 +-" in " ".join(line.changed(0, 1)) and "\x1b" not in "".join(line.changed(0, 1))


# Versions


class FakeEnvironments:
    python = "python"

    def __init__(self, *versions):
        self.asked = []
        self._versions = list(versions)

    def versions(self, name):
        return self._versions

    def settings(self, versions):
        self.asked.append(dict(versions))
        return []


def test_versions_lie_between_the_ends_without_pre_releases():
    made = FakeEnvironments("1.0", "1.1", "1.2rc1", "1.2", "1.10", "2.0")
    line = Versions("numpy", "1.0", "1.10", made)
    assert [point.name for point in line.points] == ["1.0", "1.1", "1.2", "1.10"]
    line.settings(1)
    assert made.asked == [{"numpy": "1.1"}] and line.changed(1, 2) == ["numpy 1.1 → 1.2"]


def test_versions_go_backwards_when_the_older_one_is_bad():
    line = Versions("numpy", "1.1", "1.0", FakeEnvironments("1.0", "1.1"))
    assert [point.name for point in line.points] == ["1.1", "1.0"]


def test_version_is_refused_when_it_has_no_wheel():
    with pytest.raises(UsageError, match=r"no wheel of numpy 9.0") as error:
        Versions("numpy", "1.0", "9.0", FakeEnvironments("1.0"))
    assert "There are: 1.0" in error.value.hint


@pytest.mark.parametrize("name", ["numpy; rm", "-e", "../x"])
def test_package_is_refused_when_its_name_is_none(name):
    with pytest.raises(UsageError, match="no package or version"):
        Versions(name, "1", "2", FakeEnvironments("1", "2"))


def test_environment_puts_its_packages_before_the_commands_own(tmp_path, monkeypatch):
    environments = Environments(run_in(tmp_path, sys.executable, "x.py"), tmp_path / "made")
    called = []

    def call(words):
        called.append(list(words))
        if "venv" in words:
            Path(words[-1]).mkdir(parents=True)
        return str(tmp_path / "site") if words[1] == "-c" else ""

    (tmp_path / "site").mkdir()
    monkeypatch.setattr(environments, "_call", call)
    (setting,) = environments.settings({"einops": "0.7.0"})
    assert Path(str(setting.value)).relative_to(tmp_path / "made").parts[1:] == ("bin", "python")
    assert called[-1][-4:] == ["--quiet", "--only-binary", ":all:", "einops==0.7.0"]
    assert "addsitedir" in (tmp_path / "site" / "the_commands_own.pth").read_text()


def test_environment_is_not_made_when_the_version_has_no_wheel(tmp_path, monkeypatch):
    environments = Environments(run_in(tmp_path, sys.executable, "x.py"), tmp_path / "made")
    gone = "ERROR: No matching distribution found for x==9"
    with pytest.raises(NotMade, match="No matching"):
        environments._call([sys.executable, "-c", f"import sys; sys.exit({gone!r})"])


def test_environment_says_which_version_has_no_wheel_when_it_is_an_end(tmp_path, monkeypatch):
    environments = Environments(run_in(tmp_path, sys.executable, "x.py"), tmp_path / "made")

    def call(words):
        if "install" in words:
            raise NotMade("No matching distribution found for einops==0.7.0")
        if "venv" in words:
            Path(words[-1]).mkdir(parents=True)
        return str(tmp_path) if words[1] == "-c" else ""

    monkeypatch.setattr(environments, "_call", call)
    with pytest.raises(NotMade, match=r"No wheels for .* make einops==0\.7\.0") as refused:
        environments.settings({"einops": "0.7.0"})
    assert "Name another version" in refused.value.hint
    assert not list(tmp_path.glob("made/*/complete"))


@pytest.mark.parametrize(
    "said",
    [
        "[Errno 28] No space left on device",
        "WARNING: Retrying after connection broken by 'x'\nERROR: No matching distribution found for x==9",
    ],
)
def test_environment_is_no_fault_of_the_version_when_pip_fails_for_another_reason(tmp_path, said):
    environments = Environments(run_in(tmp_path, sys.executable, "x.py"), tmp_path / "made")
    with pytest.raises(CannotRunHere):
        environments._call([sys.executable, "-c", f"import sys; sys.exit({said!r})"])


def test_versions_say_what_to_do_when_the_index_has_none(tmp_path, monkeypatch):
    environments = Environments(run_in(tmp_path, sys.executable, "x.py"), tmp_path / "made")

    def call(words):
        if "index" in words:
            raise NotMade("No matching distribution found for tqdm")
        return ""

    monkeypatch.setattr(environments, "_call", call)
    with pytest.raises(CannotRunHere, match="No versions of tqdm") as refused:
        environments.versions("tqdm")
    assert "PIP_INDEX_URL" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("/precious", "1"),
        ("../precious", "1"),
        ("--index-url=http://x", "1"),
        ("evil @ https://x/e.whl#", "1"),
        ("numpy", "/precious"),
        ("numpy", "1 @ file:///x"),
        ("numpy", ""),
    ],
)
def test_environment_is_refused_before_anything_is_called_when_a_name_or_version_is_none(
    tmp_path, monkeypatch, name, version
):
    precious = tmp_path / "precious"
    precious.mkdir()
    environments = Environments(run_in(tmp_path, sys.executable, "x.py"), tmp_path / "made")
    monkeypatch.setattr(environments, "_call", lambda words: pytest.fail(f"called {words}"))
    name = name.replace("/precious", str(precious))
    with pytest.raises(UsageError, match="no package or version"):
        environments.settings({name: version.replace("/precious", str(precious))})
    assert precious.is_dir()


def test_environments_lie_in_their_folder_under_names_of_their_own_when_pins_differ(tmp_path, monkeypatch):
    environments = Environments(run_in(tmp_path, sys.executable, "x.py"), tmp_path / "made")
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    pins = [{"a": "1"}, {"a": "2"}, {"a": "1", "b": "1"}, {"a-1_b": "1"}]
    pythons = [Path(str(environments.settings(each)[0].value)) for each in pins]
    assert len(set(pythons)) == 4
    assert {python.parents[2] for python in pythons} == {tmp_path / "made"}


def test_ends_are_refused_when_no_python_belongs_to_the_command(tmp_path):
    with pytest.raises(UsageError, match="No Python belongs to"):
        Environments(run_in(tmp_path, "./serve"), tmp_path)


# Differences


def test_each_point_makes_one_more_of_the_differences():
    made = FakeEnvironments()
    good = {"env.OMP_NUM_THREADS": "8", "package.numpy": "1.26.4", "gpu.driver": "535", "host.cpu": "A"}
    bad = {"env.OMP_NUM_THREADS": None, "package.numpy": "2.1.0", "gpu.driver": "550", "host.cpu": "A"}
    line = Differences(good, bad, made)
    assert {point.name for point in line.points[1:]} == {"env.OMP_NUM_THREADS", "package.numpy"}
    assert any(text.startswith("gpu.driver: 535 → 550") for text in line.not_switched)
    assert [str(setting) for setting in line.settings(0)] == ["env.OMP_NUM_THREADS=8"]
    assert [str(setting) for setting in line.settings(2)] == ["env.OMP_NUM_THREADS=@unset"]
    assert made.asked == [{"numpy": "1.26.4"}, {"numpy": "2.1.0"}]


def test_variable_is_not_switched_when_it_may_do_more_than_tune():
    good = {
        "env.LD_PRELOAD": None,
        "env.NCCL_NET_PLUGIN": "/a",
        "env.OMP_NUM_THREADS": "8",
        "env.MKL_NUM_THREADS": "2",
    }
    bad = {"env.LD_PRELOAD": "/tmp/evil.so", "env.OMP_NUM_THREADS": "4", "env.MKL_NUM_THREADS": "/tmp/x"}
    line = Differences(good, bad, None)
    assert [point.name for point in line.points[1:]] == ["env.OMP_NUM_THREADS"]
    assert [str(setting) for setting in line.settings(1)] == ["env.OMP_NUM_THREADS=4"]
    left = " ".join(line.not_switched)
    assert all(name in left for name in ("LD_PRELOAD", "NCCL_NET_PLUGIN", "MKL_NUM_THREADS"))
    assert "--set tries it" in left


def test_torch_is_not_switched_when_only_its_build_differs():
    facts = [
        {"torch.version": f"2.9.1+{build}", "package.numpy": version}
        for build, version in (("cu118", "1.26.4"), ("cu128", "2.1.0"))
    ]
    line = Differences(*facts, FakeEnvironments())
    assert [point.name for point in line.points[1:]] == ["package.numpy"]
    assert line.not_switched == [
        "torch.version: 2.9.1+cu118 → 2.9.1+cu128 (two builds of one version: the package index has one)"
    ]


def test_point_says_which_build_is_installed_when_the_file_names_another():
    line = Differences({"torch.version": "2.8.0+cu118"}, {"torch.version": "2.9.1+cu118"}, FakeEnvironments())
    assert line.points[1].title == (
        "torch.version: 2.8.0+cu118 → 2.9.1+cu118 (installed: 2.8.0 → 2.9.1, as the index builds them)"
    )


def test_torch_of_another_build_is_its_released_version():
    made = FakeEnvironments()
    line = Differences({"torch.version": "2.8.0+cu128"}, {"torch.version": "2.9.1+cu128"}, made)
    line.settings(1)
    assert made.asked == [{"torch": "2.9.1"}]


def test_files_are_refused_when_no_difference_can_be_made():
    with pytest.raises(UsageError, match="No difference") as error:
        Differences({"host.cpu": "A", "env.X": "1"}, {"host.cpu": "B", "env.X": Unknown("secret")}, None)
    assert "host.cpu: A → B" in error.value.message
