"""What a diagnosis is asked to do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from dynotune.measure.live.request import RecordRequest
from dynotune.schema.run import PageCache
from dynotune.schema.setting import Setting


class DiagnoseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be watched: once plain, once under a profiler.

    Args:
        env: what the command inherits.
        base: folder that the runs' own folders are made in.
        warmup_steps: that come before at least; None to wait until they are steady.
        num_steps: to time in the plain run; None for as many as tell.
        timeout_s: for each run; None for 15 minutes.
        seed: of the plain run's random numbers; None leaves them.
        finish: let both runs go on to their own end.
        page_cache: when the loader is run alone: "cold" to drop the files' pages before.
    """

    command: list[str]
    cwd: Path
    env: dict[str, str]
    base: Path
    settings: list[Setting] = []
    warmup_steps: int | None = None
    num_steps: int | None = None
    timeout_s: float | None = None
    step_on: str | None = None
    seed: int | None = None
    sandbox: bool = True
    lock: bool = True
    finish: bool = False
    page_cache: PageCache = "warm"

    def recording(self, *, stacks: bool) -> RecordRequest:
        """The profiled run of the same command. How many steps it records is its own affair."""
        return RecordRequest(
            command=self.command,
            cwd=self.cwd,
            env=self.env,
            base=self.base,
            settings=self.settings,
            warmup_steps=self.warmup_steps,
            stacks=stacks,
            timeout_s=self.timeout_s,
            step_on=self.step_on,
            sandbox=self.sandbox,
            lock=self.lock,
            finish=self.finish,
        )
