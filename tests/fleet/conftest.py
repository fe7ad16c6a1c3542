"""Databases to test with: a file of SQLite, and a real PostgreSQL server, started here."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

PASSWORD = "Pg-3ecret-4-tests"


def _binary(name: str) -> str | None:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(found[-1]) if found else shutil.which(name)


class Server:
    """A PostgreSQL server of its own folder, reached by TCP with a password; it can go away and come back."""

    def __init__(self, folder: Path) -> None:
        # PostgreSQL refuses to run as root.
        self._as = (
            ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
        )
        self._folder = folder
        if self._as:
            shutil.chown(folder, "postgres", "postgres")
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        words = [
            "-D",
            str(folder / "data"),
            "-U",
            "dynotune",
            "--auth=scram-sha-256",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        self._run("initdb", *words, f"--pwfile={folder / 'password'}")
        self.port = _free_port()
        self.url = f"postgresql://dynotune:{PASSWORD}@127.0.0.1:{self.port}/postgres"
        self.start()

    def start(self) -> None:
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c fsync=off -c "
            f"unix_socket_directories={self._folder}"
        )
        self._run(
            "pg_ctl",
            "-D",
            str(self._folder / "data"),
            "-o",
            options,
            "-l",
            str(self._folder / "log"),
            "-w",
            "start",
        )

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")

    def _run(self, name: str, *words: str) -> None:
        done = subprocess.run(
            [*self._as, _binary(name), *words], cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def _free_port() -> int:
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@pytest.fixture(scope="session")
def a_server() -> Iterator[Server]:
    if _binary("initdb") is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder))
        yield server
        server.stop()


@pytest.fixture
def server(a_server: Server) -> Server:
    """A server without tables of ours."""
    import sqlalchemy as sa

    engine = sa.create_engine(a_server.url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for table in ("study", "trial", "worker", "block", "dynotune_schema"):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
    engine.dispose()
    return a_server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'studies.db'}"
    return request.getfixturevalue("server").url
