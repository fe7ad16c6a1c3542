"""A published program: how it is started, and what an informed hand would write.

Nothing of a program is changed. Its files are copied into a folder of its own, where what it reads is made up
beside them, and it is started there by the words that its own documentation gives, for as long as it is
measured.

The informed hand is what somebody who knows the usual advice would write for this very program: by its own
options where it has them, else by what three lines added to it would do, which is said here in settings of
dynotune.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.field import losses, peers
from lab.field.sources import SOURCES
from lab.tuning.programs import Arms, Program

TUNE_S = 180.0
HAND = "hand"
"""The placeholder of the words that one arm has and the other has not."""
DEVICES = ("cuda", "cpu")
PINNED, TF32, BF16 = "loader.pin_memory=true", "matmul.fp32_precision=high", "precision.autocast=bf16"
_FOR_A_GPU = (PINNED, TF32, BF16)


@dataclass(frozen=True, kw_only=True)
class Published(Program):
    """A program of others.

    Args:
        words: after the interpreter, on any device; with `script` False, the whole command.
        by_device: more words, by device: on a CPU it has to be small.
        repository: on GitHub, one of SOURCES; "" where the program is an installed package.
        part: folder of the repository that is copied, and that the program is started in.
        make: makes what it reads, in that folder, for a device.
        path: folders of the copy that Python finds modules in, besides the program's own.
        on: the devices that it runs on.
        gpus: that it needs, where it runs on any.
        prints: what stands before each loss that it prints, as a regular expression; "" where it prints none.
        hand_words: more words by the informed hand. An option that is given twice counts the second time.
        hand_settings: what it has no words for.
        sources: folder with the repositories.
        device: that it is prepared for.
    """

    needs: tuple[str, ...] = ("torch", "numpy")
    run_s: Mapping[str, float] = field(default_factory=lambda: {"cuda": 12.0, "cpu": 12.0})
    tune_s: Mapping[str, float] = field(default_factory=lambda: {"cuda": TUNE_S, "cpu": TUNE_S})
    by_device: Mapping[str, str] = field(default_factory=dict)
    script: bool = True
    repository: str = ""
    part: str = "."
    make: Callable[[Path, str], None] | None = None
    path: tuple[str, ...] = ()
    on: tuple[str, ...] = DEVICES
    gpus: int = 1
    prints: str = ""
    hand_words: str = ""
    hand_settings: tuple[str, ...] = ()
    sources: Path = Path()
    device: str = "cpu"

    def __post_init__(self) -> None:
        takes_script = self.script and not self.words[0].startswith("-")
        cannot = peers.CANNOT | ({} if takes_script else {"traceml": peers.NO_SCRIPT})
        object.__setattr__(self, "cannot", cannot)

    @property
    def source(self) -> Path:
        return SOURCES[self.repository].folder(self.sources) / self.part

    def missing(self) -> list[str]:
        lacking = super().missing()
        if self.repository and not SOURCES[self.repository].is_there(self.sources):
            lacking.append(self.repository)
        if self.gpus > 1 and not lacking and _num_gpus() < self.gpus:
            lacking.append(f"{self.gpus} GPUs")
        return lacking

    def command(self, device: str) -> list[str]:
        words = [*self.words, *shlex.split(self.by_device.get(device, ""))]
        return [sys.executable, *words] if self.script else [_beside_python(words[0]), *words[1:]]

    @property
    def hand(self) -> str:
        return " ".join([*self._settings, self.hand_words]).strip()

    @property
    def _settings(self) -> list[str]:
        """Pinned memory is refused without a GPU, and of 16 bits few CPUs are faster."""
        return [one for one in self.hand_settings if self.device == "cuda" or one not in _FOR_A_GPU]

    def arms(self, words: str, device: str) -> Arms:
        """Of the hand, or of the settings that another tool chose. With a shell where words differ: a
        placeholder is one word, and a hand may have several."""
        if words != self.hand:
            return Arms(self.command(device), [], words.split())
        if not self.hand_words:
            return Arms(self.command(device), [], self._settings)
        line = f"exec {shlex.join(self.command(device))} {{{HAND}}}"
        return Arms(["sh", "-c", line], [f"arg.{HAND}="], [*self._settings, f"arg.{HAND}={self.hand_words}"])

    def peer(self, tool: str, device: str, budget_s: float, out: Path) -> list[str]:
        asked = [sys.executable, str(Path(peers.__file__).absolute()), tool]
        return [*asked, "--budget-s", f"{budget_s:.0f}", "--out", str(out), "--", *self.command(device)]

    def results(self, comparison: Mapping[str, Any], records: Path) -> dict[str, Any]:
        return losses.compared(comparison, records, self.prints) if self.prints else {}

    def environment(self) -> dict[str, str]:
        """Ours, with the folders of its modules; without a GPU where it is to run on a CPU."""
        ours = super().environment()
        if self.path:
            known = [str(Path(one).absolute()) for one in ours.get("PYTHONPATH", "").split(os.pathsep) if one]
            ours["PYTHONPATH"] = os.pathsep.join([*known, *self.path])
        return ours | ({"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {})


def _num_gpus() -> int:
    """That this process sees."""
    import torch

    return torch.cuda.device_count()


def _beside_python(name: str) -> str:
    """A console script of this interpreter's environment."""
    file = Path(sys.executable).with_name(name)
    return str(file) if file.is_file() else shutil.which(name) or name


@dataclass(frozen=True)
class Preparation:
    """Fills the folder that a program is started in."""

    program: Published

    def __call__(self, folder: Path) -> None:
        if self.program.repository:
            ignored = shutil.ignore_patterns(".git", "__pycache__", ".revision")
            shutil.copytree(self.program.source, folder, ignore=ignored, dirs_exist_ok=True)
        if self.program.make:
            self.program.make(folder, self.program.device)
