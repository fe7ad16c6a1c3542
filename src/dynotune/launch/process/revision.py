"""Show a repository at another revision: find the changes that a view of the working tree needs."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from dynotune import knobs
from dynotune.launch.process.leases import temporary_folder
from dynotune.launch.process.sandbox import available
from dynotune.schema import knob
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.setting import Setting

_SUBMODULE = "160000"
_GIT_S = 600.0
_AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "dynotune", "EMAIL": "dynotune@localhost"}.items()
}
# The repository's own configuration names programs. What git needs for the content of files (filters) stays.
_QUIET = (
    *("-c", "core.fsmonitor=false"),
    *("-c", f"core.hooksPath={os.devnull}"),
    *("-c", "log.showSignature=false"),
)
# A partial clone fetches what it lacks from an address of its configuration, which may name a program, too.
_OFFLINE = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0"}
_LACKS = re.compile(r"transport '.*' not allowed|lazy fetching disabled|promisor")
# To look into a submodule, git starts another git there, with the submodule's own configuration.
_NOT_INTO_SUBMODULES = "--ignore-submodules=dirty"


class Revision(NamedTuple):
    """A commit of the repository that contains a folder.

    Args:
        root: root of the working tree; absolute path with links resolved.
        differing, gone: tracked files, relative to `root`, that differ in the commit or are missing there.
    """

    root: Path
    commit: str
    subject: str
    is_dirty: bool
    differing: list[str]
    gone: list[str]


def find(cwd: Path, ref: str) -> Revision:
    """Look up `ref` in the repository that contains `cwd`, without changing anything.

    Raises:
        CannotRunHere: git is not installed.
        UsageError: no repository, or the revision is unknown, has other submodules, or equals the working
            tree.
    """
    root = _root(cwd).resolve()
    commit = _commit(root, ref)
    differing, gone = _differences(root, commit, ref)
    if not differing and not gone:
        raise UsageError(
            f"The files of the working tree are those of {ref} already, so baseline and candidate would "
            "be the same.",
            hint="Name another revision, or check out the revision to judge.",
        )
    dirty = _git(root, "status", "--porcelain", "--untracked-files=no", _NOT_INTO_SUBMODULES).strip()
    subject = _git(root, "log", "-1", "--format=%s", commit).strip()
    return Revision(root, commit, subject, bool(dirty), differing, gone)


def refuse_unseen(revision: Revision, runs: Path, *, sandbox: bool) -> None:
    """Refuse a revision that cannot be shown to the command.

    Raises CannotRunHere: no copy-on-write view is available.
    """
    why = available(revision.root, runs / "any") if sandbox else "it was not asked for"
    if why is not None:
        raise CannotRunHere(
            f"Another revision of {revision.root} can only be shown in a copy-on-write view: {why}.",
            hint=(
                "Check the revision out into a second folder with git worktree add, and compare the "
                "two folders by a placeholder in the command."
            ),
        )


def pinned(settings: Sequence[Setting], facts: Facts) -> str | None:
    """Return the commit that the revision in `settings` meant when the measurement began; None without a
    revision."""
    ref = next(
        (str(one.value) for one in settings if isinstance(knobs.get(one.knob).site, knob.Revision)), None
    )
    return None if ref is None else str(facts.get(f"git.{ref}", ref))


def export(revision: Revision, folder: Path) -> None:
    """Write the commit's version of all differing files into `folder`, which is created.

    Raises UsageError: git cannot check out the files.
    """
    folder.mkdir(mode=0o700)
    with temporary_folder(Path(tempfile.gettempdir())) as scratch:
        # Use a separate index, and leave the user's index alone.
        own = {"GIT_INDEX_FILE": str(scratch / "index")}
        _git(revision.root, "read-tree", revision.commit, env=own)
        names = "".join(f"{name}\0" for name in revision.differing)
        _git(revision.root, "checkout-index", "-z", "--stdin", f"--prefix={folder}/", env=own, given=names)


def top_level(cwd: Path) -> Path | None:
    """Return the root of the working tree that contains `cwd`; None without a repository, or without git."""
    try:
        return _root(cwd).resolve()
    except (UsageError, CannotRunHere):
        return None


class Commit(NamedTuple):
    """A commit of a history of first parents. `num_parents`: 2 for a merge."""

    hash: str
    subject: str
    num_parents: int


def between(cwd: Path, good: str, bad: str) -> list[Commit]:
    """Return the commits from `good` to `bad`, both included. Each is the first parent of the next.

    So a merge is one step, with all commits that it brought in.

    Raises UsageError: git does not know one of the two, or following first parents from `bad` does not lead
        to `good`.
    """
    root = _root(cwd)
    ends = [_commit(root, ref) for ref in (good, bad)]
    text = _git(cwd, "log", "--first-parent", "--reverse", "--format=%H%x00%P%x00%s", ends[1])
    # A subject may hold other ends of lines, such as U+2028.
    rows = [line.split("\0") for line in text.split("\n") if line]
    line = [Commit(commit, subject, len(parents.split())) for commit, parents, subject in rows]
    begin = next((index for index, commit in enumerate(line) if commit.hash == ends[0]), None)
    if begin is None:
        base = _git(cwd, "merge-base", *ends).strip()
        raise UsageError(
            f"{good} is not in the history of {bad}: following first parents from {bad} does not lead to it.",
            hint=f"They part at {base[:12]}: is that one good, as git.ref={base[:12]}?",
        )
    return line[begin:]


def came_with(cwd: Path, name: str, commits: Sequence[Commit]) -> Commit | None:
    """Return the commit of a line that brought in the file `name`, if the first one lacks it and the last has
    it; None of a file outside the repository."""
    root = top_level(cwd)
    if not commits or root is None or not (cwd / name).resolve().is_relative_to(root):
        return None

    def has_file(commit: Commit) -> bool:
        return bool(_git(cwd, "ls-tree", "--name-only", commit.hash, "--", name).strip())

    if has_file(commits[0]) or not has_file(commits[-1]):
        return None
    return next(commit for commit in commits if has_file(commit))


def is_shown(cwd: Path, commit: str) -> bool:
    """Tell whether the working tree holds the tracked files of `commit` as they are."""
    root = _root(cwd)
    return not any(_differences(root, commit, commit))


def described(cwd: Path, commit: str) -> list[str]:
    """Return lines that say what a commit changed: author, date, files with the number of lines; renames as
    such."""
    about = ("--format=%an, %ad", "--date=short")
    plain = ("--no-color", "--no-ext-diff")
    text = _git(cwd, "show", *about, "--stat=100", "--find-renames", "--first-parent", *plain, commit)
    return [line.rstrip() for line in text.split("\n") if line.strip()]


def merged(cwd: Path, commit: str) -> tuple[str, str]:
    """Return where the branch that a merge brought in began, and its last commit."""
    parents = _git(cwd, "rev-parse", f"{commit}^1", f"{commit}^2").split()
    return _git(cwd, "merge-base", *parents).strip(), parents[1]


def _root(cwd: Path) -> Path:
    """Return the root of the working tree that contains `cwd`; a folder's name may end with a blank."""
    return Path(_git(cwd, "rev-parse", "--show-toplevel").removesuffix("\n"))


def _commit(root: Path, ref: str) -> str:
    """Return the hash of a revision. Raises UsageError: there is none of this name."""
    try:
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        return _git(root, *words).strip()
    except UsageError:
        raise UsageError(
            f"git knows no revision {ref!r} in {root}.",
            hint="`git branch --all` and `git log` name those there are.",
        ) from None


def commit_with(root: Path, edited: Mapping[str, bytes], subject: str) -> str:
    """Write a commit of the working tree with other content in some files, and return its hash.

    Neither the working tree nor the index nor a branch changes. git removes the commit in time, since no
    branch holds it.

    Args:
        edited: path relative to `root` to the file's bytes.

    Raises:
        UsageError: there is no repository, or git failed.
    """
    with temporary_folder(Path(tempfile.gettempdir())) as scratch:
        own = {"GIT_INDEX_FILE": str(scratch / "index"), **_AUTHOR}
        index = root / _git(root, "rev-parse", "--git-path", "index").strip()
        if index.is_file():
            shutil.copyfile(index, scratch / "index")
        _git(root, "add", "--update", env=own)
        for name, content in edited.items():
            text = content.decode("utf-8", "surrogateescape")
            blob = _git(root, "hash-object", "-w", "--stdin", f"--path={name}", given=text).strip()
            mode = "100755" if os.access(root / name, os.X_OK) else "100644"
            _git(root, "update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}", env=own)
        tree = _git(root, "write-tree", env=own).strip()
        return _git(root, "commit-tree", tree, "-m", subject, env=own).strip()


def _differences(root: Path, commit: str, ref: str) -> tuple[list[str], list[str]]:
    plain = ("--raw", "-z", "--no-renames", "--no-ext-diff", _NOT_INTO_SUBMODULES)
    words = _git(root, "diff", *plain, commit, "--").split("\0")
    differing: list[str] = []
    gone: list[str] = []
    for fields, name in zip(words[::2], words[1::2], strict=False):
        before, after, *_, status = fields.lstrip(":").split()
        if _SUBMODULE in (before, after):
            raise UsageError(
                f"{ref} uses another revision of the submodule {name}, which cannot be shown.",
                hint=(
                    "Make two worktrees with git worktree add, and compare the two folders by a "
                    "placeholder in the command."
                ),
            )
        (gone if status.startswith("A") else differing).append(name)
    # A file that became a folder, or a folder a file, covers the other one: nothing has to be hidden.
    folders = {above for name in differing for above in _above(name)}
    return differing, [name for name in gone if name not in folders and not _above(name) & set(differing)]


def _above(name: str) -> set[str]:
    """Return the folders of a file, as paths relative to the same root."""
    return {str(folder) for folder in PurePosixPath(name).parents} - {"."}


def _git(cwd: Path, *words: str, env: dict[str, str] | None = None, given: str = "") -> str:
    if shutil.which("git") is None:
        raise CannotRunHere("git.ref needs git, which is not installed.", hint="Install git.")
    try:
        done = subprocess.run(
            ["git", "-C", str(cwd), *_QUIET, *words],
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", **_OFFLINE, **(env or {})},
            input=given.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=_GIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotRunHere(
            f"git {words[0]} in {cwd} did not end within {_GIT_S:.0f} s.",
            hint="Run it by hand, to see what it waits for.",
        ) from error
    if done.returncode != 0 and _LACKS.search(done.stderr.decode(errors="replace")):
        raise UsageError(
            f"{cwd} is a partial clone that has not fetched all files of the revision.",
            hint="Run git diff REVISION once: git then fetches them. dynotune itself fetches nothing.",
        )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ").partition("\n")[0]
        hint = "git.ref needs a command that is started in its repository."
        raise UsageError(f"git {words[0]} in {cwd}: {said or 'failed'}.", hint=hint)
    return done.stdout.decode("utf-8", "surrogateescape")
