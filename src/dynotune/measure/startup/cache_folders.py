"""Folders and environment variables of starts with caches cold, warm or off."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from dynotune.launch.caches import contents as caches
from dynotune.launch.process import temporary_folder
from dynotune.schema.errors import may_fail
from dynotune.schema.startup import CACHE_STATES, CacheState

OFF = {"CUDA_CACHE_DISABLE": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "USE_PYTORCH_KERNEL_CACHE": "0"}
"""Nothing is read from a cache or kept in one. inductor then compiles Triton's kernels again too, in a fresh
folder each time. Kernels that a program gives Triton itself are cold because the folder is emptied.
TRITON_ALWAYS_COMPILE is not set: inductor's processes pass kernels on through Triton's cache, so everything
would be compiled twice.

Source: torch/_inductor/compile_fx.py (with_fresh_cache_if_config), CUDA programming guide,
cuda_environment_variables of torch.
"""


class Places(NamedTuple):
    """Folders that starts with one state of the caches use.

    `temporary`: TMPDIR of these starts, because inductor's precompiled headers lie below it, whatever
    TORCHINDUCTOR_CACHE_DIR is. The path is short, because a socket's path has at most 108 characters.
    """

    caches: Path
    temporary: Path

    def environment(self, arm: CacheState) -> dict[str, str]:
        self.temporary.mkdir(mode=0o700, exist_ok=True)
        named = {**caches.environment(self.caches), "TMPDIR": str(self.temporary)}
        return named | (OFF if arm == "off" else {})

    def clear(self) -> None:
        caches.clear(self.caches)
        caches.clear(self.temporary)


@contextlib.contextmanager
def all_places(folder: Path, env: Mapping[str, str]) -> Iterator[dict[CacheState, Places]]:
    """Yield the folders for all states of the caches. Temporary folders are removed at the end; warm caches
    stay."""
    wanted = env.get("TMPDIR", "")
    base = Path(wanted if wanted and Path(wanted).is_dir() else tempfile.gettempdir())
    with contextlib.ExitStack() as stack:
        with may_fail("make a temporary folder", "Free some space there, or set TMPDIR."):
            temporary = stack.enter_context(temporary_folder(base))
        places = {arm: Places(folder / "caches" / arm, temporary / arm[0]) for arm in CACHE_STATES}
        for arm in ("cold", "off"):
            stack.callback(shutil.rmtree, places[arm].caches, ignore_errors=True)
        yield places
