"""Enter a copy-on-write view of a directory by namespaces and mounts, in the process that becomes the
command.

With privileges (CAP_SYS_ADMIN), a new mount namespace is enough, and every user id stays as it is. Without
privileges, a new user namespace is needed too, in which the caller's user and group id are mapped to
themselves. In that namespace the program sees its own ids as usual, sees files of other users as owned by
65534 (nobody), and cannot change its user (no sudo, no chown). The kernel still checks permissions with the
real ids, including supplementary groups. A user namespace removes capabilities, so a caller with a capability
to read other users' files gets no view.
"""

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_AT_FDCWD = -100
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
_READS_ANYTHING = 1 << 1 | 1 << 2


class View(NamedTuple):
    """A folder to show copy-on-write, and the place of the copies.

    Args:
        cwd: directory; absolute path with links resolved.
        scratch: empty folder outside `cwd`, on a file system that can hold an upper layer.
        keep: folders below `cwd` to which writes go for real.
        seed: folder whose files cover those of `cwd` from the start; "" for none.
        gone: files of `cwd`, as relative paths, that the view hides.
    """

    cwd: str
    scratch: str
    keep: Sequence[str] = ()
    seed: str = ""
    gone: Sequence[str] = ()

    @property
    def upper(self) -> str:
        return os.path.join(self.scratch, "upper")

    @property
    def work(self) -> str:
        return os.path.join(self.scratch, "work")


class NoOverlay(OSError):
    """Error: the kernel refuses the view. `step`: description of the failed step."""

    def __init__(self, error: OSError, step: str) -> None:
        super().__init__(error.errno, error.strerror)
        self.step = step

    def __str__(self) -> str:
        return f"{self.step}: {self.strerror}"


@contextlib.contextmanager
def doing(step: str) -> Iterator[None]:
    """Convert an OSError in the `with` block to NoOverlay with the description `step`."""
    try:
        yield
    except OSError as error:
        raise NoOverlay(error, step) from error


def enter(view: View) -> None:
    """Show `view.cwd` copy-on-write to this process and its children. Change into the directory afterwards.

    A privileged process still sees other file systems mounted below the directory, and writes to them for
    real.

    Raises NoOverlay: a step failed; the process must then exit.
    """
    keep = [*view.keep, *mounts_below(view.cwd)]
    _own_namespace()
    # Open inside the new namespace, because a bind mount accepts only mounts of its own namespace.
    kept = [(path, _open(path)) for path in keep]
    lower, upper, work = (_open(path) for path in (view.cwd, view.upper, view.work))
    options = f"lowerdir=/proc/self/fd/{lower},upperdir=/proc/self/fd/{upper},workdir=/proc/self/fd/{work}"
    target = f"/proc/self/fd/{lower}"
    source = os.path.basename(view.scratch)  # `leases` identifies processes that see the view by this name
    if _may_set(view.upper, "trusted.overlay.dynotune"):
        # With these options a directory can be renamed in one step, and hard links stay linked when a file is
        # written, as without a view. A kernel may reject either option.
        for more in (",redirect_dir=on,index=on", ",redirect_dir=on", ""):
            try:
                _mount(source, target, "overlay", 0, options + more)
                break
            except NoOverlay:
                if not more:
                    raise
    else:
        _mount(source, target, "overlay", 0, options + ",userxattr")
    for path, descriptor in kept:
        _mount(f"/proc/self/fd/{descriptor}", path, None, _MS_BIND | _MS_REC, None)
    for descriptor in (lower, upper, work, *(descriptor for _, descriptor in kept)):
        os.close(descriptor)
    for name in view.gone:
        _take_away(view.cwd, name)


def _take_away(cwd: str, name: str) -> None:
    """Remove a file from the view, and then the folders that have become empty by the removal."""
    with doing(f"taking {name} out of the view"):
        os.unlink(os.path.join(cwd, name))
    folder = os.path.dirname(name)
    with contextlib.suppress(OSError):
        while folder:
            os.rmdir(os.path.join(cwd, folder))
            folder = os.path.dirname(folder)


def make_layers(view: View) -> None:
    """Make the upper and the work folder of the overlay; the upper folder copies the attributes of the
    directory.

    Raises NoOverlay: the file system cannot store the extended attributes of an upper layer.
    """
    with doing(f"keeping changes under {view.scratch}"):
        for path in (view.upper, view.work):
            os.mkdir(path, 0o700)
        if not any(_may_set(view.upper, f"{kind}.overlay.dynotune") for kind in ("trusted", "user")):
            raise OSError(errno.ENOTSUP, "it keeps no extended attributes")
        covered = os.stat(view.cwd)
        with contextlib.suppress(PermissionError):
            os.chown(view.upper, covered.st_uid, covered.st_gid)
        os.chmod(view.upper, stat.S_IMODE(covered.st_mode))
        for acl in ("system.posix_acl_access", "system.posix_acl_default"):
            with contextlib.suppress(OSError):
                os.setxattr(view.upper, acl, os.getxattr(view.cwd, acl))
        os.utime(view.upper, ns=(covered.st_atime_ns, covered.st_mtime_ns))
        if view.seed:
            _lay_over(view)


def _lay_over(view: View) -> None:
    """Copy the seed into the upper layer, with the folder attributes of the directory."""
    import shutil

    shutil.copytree(view.seed, view.upper, symlinks=True, dirs_exist_ok=True)
    for folder, folders, _ in os.walk(view.upper):
        for path in (folder, *(os.path.join(folder, name) for name in folders)):
            with contextlib.suppress(FileNotFoundError):
                os.chmod(
                    path,
                    stat.S_IMODE(os.stat(os.path.join(view.cwd, os.path.relpath(path, view.upper))).st_mode),
                )


def remove(scratch: str) -> None:
    """Remove the copies that a view made, whatever their permissions. Copies that cannot be removed stay."""
    import shutil

    for folder, folders, _ in os.walk(scratch):
        for path in (folder, *(os.path.join(folder, name) for name in folders)):
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(scratch, ignore_errors=True)


class _Handle(ctypes.Structure):
    _fields_ = (("num_bytes", ctypes.c_uint), ("kind", ctypes.c_int), ("value", ctypes.c_ubyte * 128))


def file_handle(path: str) -> bytes:
    """Return the file system's handle of the file, the handle's type first; b"-" without one. Follow no
    links."""
    handle, mount = _Handle(128), ctypes.c_int()
    libc = ctypes.CDLL(None)
    if (
        libc.name_to_handle_at(_AT_FDCWD, os.fsencode(path), ctypes.byref(handle), ctypes.byref(mount), 0)
        != 0
    ):
        return b"-"
    return bytes([handle.kind & 0xFF, *handle.value[: handle.num_bytes]])


def mounts_below(path: str) -> list[str]:
    """Return the topmost mount points below `path`, without `path` itself."""
    found: list[str] = []
    with open("/proc/self/mountinfo", "rb") as file:
        points = {os.fsdecode(_unescape(line.split()[4])) for line in file}
    for point in sorted(points):
        inside = point.startswith(path.rstrip("/") + "/")
        if inside and not any(point.startswith(above + "/") for above in found):
            found.append(point)
    return found


def _own_namespace() -> None:
    """Make a mount namespace, together with a user namespace if the kernel requires one."""
    try:
        _unshare(_CLONE_NEWNS)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        if user != 0 and _effective_capabilities() & _READS_ANYTHING:
            # Python's files may be readable only through the capability, and Python could then import nothing
            # more.
            lost = OSError(errno.EPERM, "the view would take away the capability to read other users' files")
            raise NoOverlay(lost, "making a view") from None
        with doing("making a user namespace"):
            _unshare(_CLONE_NEWUSER | _CLONE_NEWNS)
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/gid_map", f"{group} {group} 1")
            _write("/proc/self/uid_map", f"{user} {user} 1")
    except OSError as error:
        raise NoOverlay(error, "making a mount namespace") from error
    # Without this, the overlay would also appear in the parent namespace.
    _mount(None, "/", None, _MS_SLAVE | _MS_REC, None)


def _effective_capabilities() -> int:
    with open("/proc/self/status", "rb") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith(b"CapEff:")), 0)


def _may_set(path: str, name: str) -> bool:
    try:
        os.setxattr(path, name, b"y")
        os.removexattr(path, name)
    except OSError:
        return False
    return True


def _open(path: str) -> int:
    with doing(f"opening {path}"):
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _write(path: str, text: str) -> None:
    # Use bytes: in a user namespace the file of a codec may be unreadable.
    with open(path, "wb", buffering=0) as file:
        file.write(text.encode())


def _unescape(path: bytes) -> bytes:
    for code, byte in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        path = path.replace(code, byte)
    return path


def _unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        _raise_errno()


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None) -> None:
    def text(value: str | None) -> bytes | None:
        return None if value is None else os.fsencode(value)

    libc = ctypes.CDLL(None, use_errno=True)
    with doing(f"mounting {kind or source or target}"):
        if libc.mount(text(source), text(target), text(kind), ctypes.c_ulong(flags), text(options)) != 0:
            _raise_errno()


def _raise_errno() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
