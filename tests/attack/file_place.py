"""A program in one place, bare and in a view; a script of its own, standard library only.

Reads a case as JSON on stdin, and prints what was seen and what did not hold. Where it is root, it has a
mount namespace of its own, so that nothing that it mounts is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

USER, GROUP, TEAM, COLLEAGUE = 12347, 12347, 12400, 12348
NEWNS, NEWUSER = 0x00020000, 0x10000000
BIND, REMOUNT, READ_ONLY, PRIVATE = 0x1000, 0x20, 0x1, 0x40000 | 0x4000
LONGEST_S = 120

# As dynotune launches a measured run: source, working directory, folder for run folders, command.
LAUNCH = """
import json, os, sys
from pathlib import Path
sys.path.append(sys.argv[1])
from dynotune import launch
from dynotune.schema.errors import DynotuneError
try:
    run_dir = launch.new_run_folder(Path(sys.argv[3]))
    folders = {"cwd": Path(sys.argv[2]), "run_dir": run_dir}
    with launch.start(sys.argv[4:], env=dict(os.environ), **folders, sandbox="auto") as one:
        exit_ = one.wait(100) or one.end()
    seen = [(run_dir / name).read_text(errors="backslashreplace") for name in ("stdout", "stderr")]
    left = sorted(path.name for path in run_dir.iterdir())
    print(json.dumps([exit_.status, *seen, one.sandbox, one.sandbox_reason, left]))
except DynotuneError as error:
    print(json.dumps([f"{error.message} {error.hint}"]))
"""


def fill(top: Path, *, data_bytes: int = 60_000, linked: bool = False) -> None:
    """The same files each time. `linked`: one of them has two names, for which many places have no view."""
    files = {"a.txt": b"alpha\n", "b.txt": b"beta\n", "big.bin": bytes(range(256)) * (data_bytes // 256), "hard1": b"h",  # noqa: E501
             "ro.txt": b"r", "secret": b"s", "run.sh": b"#!/bin/sh\necho ran\n", "sub/one.txt": b"1\n",
             "sub/deep/two.txt": b"2\n", "empty/.keep": b"", "sparse": b""}  # fmt: skip
    odd = (b"-rf", b"new\nline", b"\xe9\xff", b"x" * 255, b" ", b".wh.x")
    for name, content in (files | {f"odd/{os.fsdecode(name)}": name[:9] for name in odd}).items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(content)
    (top / "empty" / ".keep").unlink()
    os.truncate(top / "sparse", 1 << 26)
    if linked:
        os.link(top / "hard1", top / "hard2")
    for name, target in (("link", "a.txt"), ("dangling", "nowhere"), ("dirlink", "sub")):
        (top / name).symlink_to(target)
    os.mkfifo(top / "fifo")
    with sqlite3.connect(top / "data.db") as base:
        base.execute("create table t(x)")
    base.close()
    with contextlib.suppress(OSError):  # a file system that has none
        os.setxattr(top / "a.txt", "user.note", b"was here")
    for name, mode in (("ro.txt", 0o444), ("secret", 0o600), ("run.sh", 0o755)):
        (top / name).chmod(mode)


def age(top: Path) -> None:
    for number, path in enumerate(reversed([top, *sorted(top.rglob("*"))])):
        os.utime(path, ns=(1_600_000_000_000_000_000 + number, 1_600_000_000_000_000_123 + number),
                 follow_symlinks=False)  # fmt: skip


def snapshot(top: Path) -> dict[str, object]:
    """Everything about the files that a stranger's hand would change, the time of that change included."""
    found: dict[str, object] = {}
    for path in [top, *top.rglob("*")]:
        s = path.lstat()
        seen: list[object] = [
            oct(s.st_mode),
            s.st_uid,
            s.st_gid,
            s.st_ino,
            s.st_nlink,
            s.st_size,
            s.st_mtime_ns,
            s.st_ctime_ns,
            s.st_blocks,
        ]
        if stat.S_ISREG(s.st_mode):
            seen.append(hashlib.sha256(path.read_bytes()).hexdigest())
        if not stat.S_ISLNK(s.st_mode):
            seen.append([(name, os.getxattr(path, name).hex()) for name in os.listxattr(path)])
        else:
            seen.append(str(path.readlink()))
        found[os.fsencode(path.relative_to(top)).decode(errors="backslashreplace")] = seen
    return found


def mount(source: str, target: Path, kind: str | None, flags: int = 0, options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = (source.encode(), os.fsencode(target), kind and kind.encode())
    if libc.mount(*texts, ctypes.c_ulong(flags), options.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mounting {kind or 'a folder'}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def without_namespaces() -> None:
    """In the child: a user namespace in which no other can be made, and no privilege is left after `exec`."""
    user, group = os.geteuid(), os.getegid()
    unshare(NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/sys/user/max_user_namespaces").write_text("0")


class Place:
    """A folder of one kind, made anew for each run in it."""

    def __init__(self, kind: str, base: Path, *, linked: bool) -> None:
        self.linked = linked
        self.kind, self.base, self.project, self.runs = kind, base, base / "project", base / "runs"
        self.groups: list[int] = []
        self.ids = (
            (0, 0)
            if kind in ("root", "overlayfs", "tmpfs", "read-only mount", "small disk", "full disk")
            else (USER, GROUP)
        )
        if os.geteuid() != 0:
            self.ids = (os.geteuid(), os.getegid())
        if kind == "shared by a group":
            self.groups = [TEAM]
        for folder in (self.project, self.runs, base / "tmp", base / "home"):
            folder.mkdir()
            self._own(folder, *self.ids)
        if kind == "overlayfs":
            for name in ("lower", "upper", "work"):
                (base / name).mkdir()
            fill(base / "lower", linked=linked)
            age(base / "lower")
            options = f"lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work"
            mount("o", self.project, "overlay", 0, options)
        elif kind == "tmpfs":
            mount("t", self.project, "tmpfs")
        elif kind == "small disk":
            mount("t", self.project, "tmpfs", 0, "size=1m")
        elif kind == "full disk":
            (base / "disk").mkdir()
            mount("t", base / "disk", "tmpfs", 0, "size=3m")
            self.project, self.runs = base / "disk" / "project", base / "disk" / "runs"
            self.project.mkdir()
            self.runs.mkdir()
        self.is_filled = kind == "overlayfs"

    def fill(self) -> None:
        """Put the files there, as they were before the first run."""
        if self.kind == "read-only mount" and self.is_filled:
            return
        if not self.is_filled or any(self.project.iterdir()):
            for path in sorted(self.project.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
            fill(
                self.project, data_bytes=600_000 if self.kind == "small disk" else 60_000, linked=self.linked
            )
        self.is_filled = True
        for path in [self.project, *self.project.rglob("*")]:
            self._give(path)
        age(self.project)
        if self.kind == "read-only mount":
            mount(str(self.project), self.project, None, BIND)
            mount(str(self.project), self.project, None, BIND | REMOUNT | READ_ONLY)

    def _give(self, path: Path) -> None:
        if self.kind == "user's on another's files":
            self._own(path, COLLEAGUE, COLLEAGUE)
        elif self.kind == "shared by a group":
            self._own(path, COLLEAGUE, TEAM)
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o2775)
            elif path.is_file() and not path.is_symlink():
                path.chmod(0o664)
        else:
            mode = path.lstat().st_mode
            self._own(path, *self.ids)
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(mode))

    @staticmethod
    def _own(path: Path, user: int, group: int) -> None:
        if os.geteuid() == 0:
            os.chown(path, user, group, follow_symlinks=False)

    def run(self, words: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """As the place's user, with an environment and folders of its own."""
        env = {"PATH": os.environ["PATH"], "HOME": str(self.base / "home"), "TMPDIR": str(self.base / "tmp"),
               "PYTHONDONTWRITEBYTECODE": "1"}  # fmt: skip
        who = dict(zip(("user", "group"), self.ids, strict=True)) if os.geteuid() == 0 else {}
        more = {"extra_groups": self.groups} if who else {}
        return subprocess.run(
            words, cwd=cwd or "/", env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="backslashreplace", timeout=LONGEST_S, umask=0o022, start_new_session=True, **who, **more,
        )  # fmt: skip


def compare(case: dict[str, str], base: Path) -> dict[str, object]:
    """What the program saw bare and launched, how it was launched, and what did not hold."""
    # A program that is about them says so by their name.
    place, wrong = Place(case["place"], base, linked="hard2" in case["program"]), []
    before_mounts = Path("/proc/self/mountinfo").read_text()
    command = [case["python"], "-S", "-c", case["program"]]
    # In that place a script of ours stands before both.
    shut = (
        [case["python"], "-I", "-S", str(Path(__file__)), "--shut"]
        if place.kind == "without namespaces"
        else []
    )
    place.fill()
    if place.kind == "read-only mount":
        before_mounts = Path("/proc/self/mountinfo").read_text()
    before = snapshot(place.project)
    words = [
        case["python"],
        "-I",
        "-S",
        "-c",
        LAUNCH,
        case["source"],
        str(place.project),
        str(place.runs),
        *command,
    ]
    done = place.run([*shut, *words])
    if done.returncode != 0 or not done.stdout:
        return {"wrong": [f"launching ended with {done.returncode}: {done.stderr[-500:]}"]}
    said = json.loads(done.stdout.splitlines()[-1])
    if len(said) == 1:
        return {
            "refused": said[0],
            "wrong": ["the folder changed"] if snapshot(place.project) != before else [],
        }
    status, out, err, sandbox, reason, left = said
    if sandbox == "overlay" and (after := snapshot(place.project)) != before:
        names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        wrong.append(
            f"the folder changed: {[(name, before.get(name), after.get(name)) for name in names[:3]]}"
        )
    if left != ["stderr", "stdout"]:
        wrong.append(f"left in the run folder: {left}")
    leases = base / "home" / ".local" / "state" / "dynotune" / "leases"
    if stays := [*(base / "tmp").iterdir(), *(leases.iterdir() if leases.exists() else ())]:
        wrong.append(f"left: {[path.name for path in stays]}")
    if Path("/proc/self/mountinfo").read_text() != before_mounts:
        wrong.append("something is left mounted")
    place.fill()
    bare = place.run([*shut, *command], cwd=place.project)
    return {
        "launched": [status, out, err],
        "bare": [bare.returncode, bare.stdout, bare.stderr],
        "sandbox": sandbox,
        "reason": reason,
        "wrong": wrong,
    }


def main() -> None:
    if sys.argv[1:2] == ["--shut"]:
        without_namespaces()
        os.execv(sys.argv[2], sys.argv[2:])
    case = json.load(sys.stdin)
    if os.geteuid() == 0:
        unshare(NEWNS)
        mount("none", Path("/"), None, PRIVATE)
    try:
        print(json.dumps(compare(case, Path(case["base"]))))
    except OSError as error:
        print(json.dumps({"cannot": str(error)}))


if __name__ == "__main__":
    main()
