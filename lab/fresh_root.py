"""A fresh root folder, as a container has one: the system's folders read as they are, everything else empty.

Its processes see their own mounts (`unshare --mount`) and have this root (`chroot`). It needs root, and a
kernel that lets this process mount.
"""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "etc")
KERNEL = ("proc", "sys", "dev")
ENTERING = ("unshare", "--mount", "--propagation", "private", "--fork")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def can_enter() -> bool:
    """Tell whether a process may have mounts and a root of its own here."""
    words = [*ENTERING, "mount", "--bind", "/usr", "/mnt"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def of_interpreter() -> dict[Path, Path]:
    """Return the folders that this interpreter and its packages lie in, outside the system's folders, each at
    its own path."""
    folders = {Path(sys.base_prefix), Path(sys.prefix), *(Path(entry) for entry in sys.path if entry)}
    found = {folder.resolve() for folder in folders if folder.is_dir()}
    found = {folder for folder in found if not any(folder.is_relative_to(f"/{name}") for name in SYSTEM)}
    outer = {
        folder
        for folder in found
        if not any(folder != other and folder.is_relative_to(other) for other in found)
    }
    return {folder: folder for folder in sorted(outer)}


@dataclasses.dataclass(frozen=True)
class FreshRoot:
    """A root folder to be made at `folder`.

    Args:
        image: folder with the system's folders, such as one that debootstrap made; `/` for this machine's.
        shown: by folder inside, the folder of this machine that is seen there.
        hidden: files inside that are seen as empty ones.
    """

    folder: Path
    image: Path
    shown: Mapping[Path, Path]
    hidden: Sequence[str] = ()

    def run(
        self, command: Sequence[str], env: Mapping[str, str], *, cwd: str = "/"
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, with these variables and no others; its writes to the image's and the shown
        folders are refused."""
        inside = f"cd {shlex.quote(cwd)} && exec {shlex.join(command)}"
        variables = [f"{name}={value}" for name, value in {"PATH": PATH, **env}.items()]
        entered = shlex.join(
            ["chroot", str(self.folder), "/usr/bin/env", "-i", *variables, "/bin/sh", "-c", inside]
        )
        script = "\n".join(["set -e", *self._mounts(), f"exec {entered}"])
        return subprocess.run(
            [*ENTERING, "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def path(self, inside: str) -> Path:
        """Return where a path of the root lies on this machine."""
        return self.folder / inside.lstrip("/")

    def _mounts(self) -> Iterable[str]:
        for name in ("tmp", "home", "root", "opt", "srv", "var/tmp", "run"):
            self.path(name).mkdir(parents=True, exist_ok=True)
        for name in SYSTEM:
            source = self.image / name
            if source.is_symlink():
                if not self.path(name).is_symlink():
                    self.path(name).symlink_to(source.readlink())
            elif source.is_dir():
                yield from self._bound(source, self.path(name))
        for name in KERNEL:
            self.path(name).mkdir(exist_ok=True)
            yield f"mount --rbind /{name} {shlex.quote(str(self.path(name)))}"
        for inside, source in self.shown.items():
            yield from self._bound(source, self.path(str(inside)))
        for name in self.hidden:
            yield f"mount --bind /dev/null {shlex.quote(str(self.path(name)))}"

    def _bound(self, source: Path, target: Path) -> Iterable[str]:
        target.mkdir(parents=True, exist_ok=True)
        places = shlex.join([str(source), str(target)])
        # A driver's files may be mounts of their own within the system's folders.
        yield f"mount --rbind {places}"
        yield f"mount -o remount,bind,ro {shlex.quote(str(target))}"
