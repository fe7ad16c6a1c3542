"""Programs in forks of an interpreter that has imported torch: most of a small program's start is that
import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SERVER = Path(__file__).with_name("fork_server.py")


class Forked:
    """Runs programs one after the other, each in a process of its own.

    Args:
        modules: imported before the first fork.
        env: what all of them find; by default what this process has.
        python: the interpreter.
    """

    def __init__(
        self, *modules: str, env: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> None:
        self._modules, self._env, self._python = modules, env, python
        self._server: subprocess.Popen[str] | None = None

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        folder: Path,
        env: Mapping[str, str] | None = None,
        first: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """A program and its arguments.

        Args:
            folder: takes its output, into files `stdout` and `stderr`.
            env: what it finds instead, of what is read after the modules have been imported.
            first: a file that is run before it, in the place of sitecustomize.
        """
        if self._server is None:
            self._server = subprocess.Popen(
                [self._python, str(SERVER), *self._modules],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._server.stdin is not None and self._server.stdout is not None
        try:
            job = {"argv": list(argv), "cwd": str(cwd), "folder": str(folder)}
            job |= {"env": None if env is None else dict(env), "first": first}
            print(json.dumps(job), file=self._server.stdin, flush=True)
            answer = self._server.stdout.readline()
            assert answer, "no program could be forked: what stands in its way is on standard error"
        except BaseException:
            self.end()
            raise
        stdout, stderr = ((folder / name).read_text() for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(argv, int(answer), stdout, stderr)

    def end(self) -> None:
        """With whatever it runs."""
        if self._server is not None:
            os.killpg(self._server.pid, 9)
            self._server.communicate()
            self._server = None
