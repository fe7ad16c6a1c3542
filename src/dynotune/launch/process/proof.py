"""Test a copy-on-write view before the first run: do in the view everything that this user may do in the
folder.

Files of the folder are sorted into kinds by type, owner, group, mode, and whether they have a second hard
link. One file of each kind is written, moved, linked and given another mode in the view, and a file is made
in one folder of each kind. Every operation that the user may do in the folder must work in the view with the
same outcome, and must not change the folder. Files that the user neither owns nor may write are only read,
because programs rarely move such files, and a failed move would cost the whole view.
"""

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dynotune.launch.process import overlay
from dynotune.launch.process.overlay import NoOverlay, View

_MOST_ENTRIES = 50_000
_LARGEST_BYTES = 1 << 26


class _Sample(NamedTuple):
    """A file or folder of one kind, as found outside the view.

    Args:
        name: path relative to the directory; "." for the directory itself.
        other: another hard link to the same file in the directory; "" without another link.
    """

    name: str
    status: os.stat_result
    writable: bool
    other: str = ""

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_own(self) -> bool:
        """Tell whether the user may change the file's mode and move it. Root may, except where nobody may
        write."""
        return self.writable if os.geteuid() == 0 else os.geteuid() == self.status.st_uid


def try_out(view: View) -> None:
    """Enter the view, check that it behaves as the directory does, and check that no write reaches the
    directory.

    Raises NoOverlay: the view does not work here, or behaves differently.
    """
    with overlay.doing(f"looking into {view.cwd}"):
        real = os.open(view.cwd, os.O_RDONLY | os.O_DIRECTORY)
        samples = list(_samples(view.cwd, {*view.keep, *overlay.mounts_below(view.cwd)}))
    overlay.make_layers(view)
    overlay.enter(view)
    os.chdir(view.cwd)
    token = f".dynotune-{os.urandom(8).hex()}"
    # Try folders last, since each file must be found under its own name again after a rename.
    for sample in sorted(samples, key=lambda one: one.is_folder):
        try:
            (_try_folder if sample.is_folder else _try_file)(sample, token, real)
        except OSError as error:
            if error.errno == errno.EOVERFLOW:
                error = OSError(
                    error.errno, "without privileges a view cannot change files of this user or group"
                )
            where = "the folder itself" if sample.name == "." else sample.name
            raise NoOverlay(error, f"trying it on {where}") from error
    with overlay.doing("writing past the view"):
        for path in view.keep:
            Path(path, token).touch(0o600, exist_ok=False)
            Path(path, token).unlink()


def _samples(cwd: str, skip: set[str]) -> Iterator[_Sample]:
    """Yield the smallest file of each kind, from a walk that lists nearest folders first."""
    kinds: dict[tuple[int, ...], _Sample] = {}
    names: dict[int, str] = {}
    to_list, num_seen = [""], 0
    root = Path(cwd).stat()
    kinds[_kind(root, writable=True)] = _Sample(".", root, _may(cwd, os.W_OK | os.X_OK))
    for folder in to_list:
        if num_seen > _MOST_ENTRIES:
            break
        for item in _entries(f"{cwd}/{folder}"):
            num_seen += 1
            try:
                status = item.stat(follow_symlinks=False)
            except OSError:
                continue
            if item.path in skip or status.st_dev != root.st_dev:
                continue
            name, is_folder = f"{folder}{item.name}", stat.S_ISDIR(status.st_mode)
            if is_folder:
                to_list.append(f"{name}/")
            elif not stat.S_ISREG(status.st_mode):
                continue
            writable = _may(item.path, os.W_OK | (os.X_OK if is_folder else 0))
            other = "" if is_folder or status.st_nlink == 1 else names.setdefault(status.st_ino, name)
            sample = _Sample(name, status, writable, "" if other == name else other)
            kind = (*_kind(status, writable), bool(sample.other))
            if kind not in kinds or (not is_folder and status.st_size < kinds[kind].status.st_size):
                kinds[kind] = sample
    yield from kinds.values()


def _may(path: str | Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=True)


def _entries(folder: str) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError:
        return ()


def _kind(status: os.stat_result, writable: bool) -> tuple[int, ...]:
    return status.st_mode, status.st_uid, status.st_gid, writable


def _try_file(sample: _Sample, token: str, real: int) -> None:
    """Write to the file, link it, move it and set its mode in the view; the real file must stay unchanged."""
    path, was = Path(sample.name), sample.status
    if was.st_size > _LARGEST_BYTES or not _is_unchanged(sample, real):
        return
    _must(path.lstat().st_mode == was.st_mode, "it has another mode in the view")
    if sample.writable:
        size_bytes = path.stat().st_size
        with path.open("ab", buffering=0) as file:
            file.write(b"x")
        _must(path.stat().st_size == size_bytes + 1, "what was written is not there")
        if sample.other:
            _must(Path(sample.other).samefile(path), f"it is another file than {sample.other} in the view")
    if sample.is_own:
        path.chmod(stat.S_IMODE(was.st_mode))
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        if _may(path.parent, os.W_OK | os.X_OK):
            moved = path.with_name(path.name[:200] + token)
            moved.hardlink_to(path)
            path.unlink()
            moved.rename(path)
    if sample.writable or sample.is_own:
        now = path.lstat()
        _must((now.st_uid, now.st_gid) == (was.st_uid, was.st_gid), "it belongs to someone else in the view")
    _must(_is_unchanged(sample, real), "what was written in the view reached the folder")


def _try_folder(sample: _Sample, token: str, real: int) -> None:
    """Make a folder and a file in the folder, check that their owners are as outside, then move and remove
    them."""
    path, was = Path(sample.name), sample.status
    made, moved = path / token, path / f"{token}-moved"
    _must(path.stat().st_mode == was.st_mode, "it has another mode in the view")
    try:
        made.mkdir()
    except OSError:
        if sample.writable:
            raise
        return
    _must(sample.writable, "it can be written only in the view")
    file = made / "file"
    file.write_bytes(b"x")
    inherits = was.st_mode & stat.S_ISGID
    owner = (os.geteuid(), was.st_gid if inherits else os.getegid())
    for new in (made, file):
        now = new.stat()
        _must((now.st_uid, now.st_gid) == owner, "new files belong to someone else in the view")
    _must(made.stat().st_mode & stat.S_ISGID == inherits, "new folders have another mode in the view")
    _must(not _is_outside(made, real), "what was written in the view reached the folder")
    file.chmod(0o600)
    file.rename(moved)
    file.hardlink_to(moved)
    moved.unlink()
    made.rename(moved)
    (moved / "file").unlink()
    moved.rmdir()


def _is_outside(path: Path, real: int) -> bool:
    try:
        os.stat(path, dir_fd=real, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_unchanged(sample: _Sample, real: int) -> bool:
    """Tell whether the real file is unchanged; another program may be writing to the file."""
    try:
        now = os.stat(sample.name, dir_fd=real, follow_symlinks=False)
    except FileNotFoundError:
        return False
    was = sample.status
    return (now.st_ino, now.st_size, now.st_mtime_ns) == (was.st_ino, was.st_size, was.st_mtime_ns)


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise OSError(errno.EPERM, otherwise)
