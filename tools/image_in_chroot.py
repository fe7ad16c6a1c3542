"""Follow a Dockerfile in a folder that holds its base image, and run what it starts, where Docker is missing.

    debootstrap --include=python3,python3-pip,ca-certificates bookworm ROOT
    chroot ROOT pip install --break-system-packages torch numpy; ln -s python3 ROOT/usr/bin/python
    python tools/image_in_chroot.py ROOT diagnose -- python train.py

It takes root, and changes ROOT. A chroot shares processes, network and devices with this machine: it isolates
nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
DOCKERFILE = REPOSITORY / "examples" / "Dockerfile"
MOUNTED = ("proc", "dev", "sys")
FROM_HERE = ("etc/resolv.conf", "etc/pip.conf", "etc/ssl/certs/ca-certificates.crt")
"""What Docker gives a container, and what pip needs to find its index."""


class Image:
    """What the Dockerfile's instructions did so far to the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, "/"
        known = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_", "REQUESTS_"))
        }
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        self.env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            **known,
            **proxies,
        }
        self.entry: list[str] = []
        self.words: list[str] = []

    def follow(self, name: str, rest: str) -> None:
        """Carry out one instruction."""
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                self._copy(REPOSITORY / source, target)
        elif name == "RUN":
            self.run("/bin/sh", "-c", rest).check_returncode()
        elif name == "WORKDIR":
            self.folder = rest
            self._inside(rest).mkdir(parents=True, exist_ok=True)
        elif name == "ENV":
            key, _, value = rest.partition("=")
            self.env[key] = value
        elif name == "ENTRYPOINT":
            self.entry = json.loads(rest)
        elif name == "CMD":
            self.words = json.loads(rest)
        elif name != "FROM":
            raise ValueError(f"the instruction {name} is not known here")

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        mounts = "".join(
            f"mount --rbind /{name} {shlex.quote(f'{self.root}/{name}')} && " for name in MOUNTED
        )
        inside = f'exec chroot {shlex.quote(str(self.root))} /bin/sh -c \'cd "$0" && exec "$@"\' "$@"'
        # Mounts of a namespace of its own: they vanish with the process, and reach no other.
        words = (
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "/bin/sh",
            "-c",
            mounts + inside,
            "sh",
            self.folder,
            *words,
        )
        return subprocess.run(words, env=self.env, check=False)

    def start(self, *words: str) -> int:
        """Start the entry point, as `docker run IMAGE WORDS` does, and return its exit code."""
        return self.run(*self.entry, *(words or self.words)).returncode

    def _inside(self, path: str) -> Path:
        return self.root / (path if path.startswith("/") else f"{self.folder}/{path}").lstrip("/")

    def _copy(self, source: Path, target: str) -> None:
        to = self._inside(target)
        if source.is_dir():
            shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            return
        to = to / source.name if target.endswith("/") else to
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    for line in dockerfile.read_text(encoding="utf-8").replace("\\\n", "").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("words", nargs=argparse.REMAINDER, help="what docker run would get")
    given = parser.parse_args()
    root = given.root.resolve()
    if os.geteuid() != 0 or not (root / "bin/sh").exists():
        sys.exit(f"This takes root, and a system in {root}.")
    for name in FROM_HERE:
        if Path("/", name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path("/", name), root / name)
    image = Image(root)
    for name, rest in instructions(DOCKERFILE):
        print(f"{name} {rest}", flush=True)
        image.follow(name, rest)
    return image.start(*given.words)


if __name__ == "__main__":
    sys.exit(main())
