"""Load dynotune's own Triton kernels, if they can be used."""

import functools
import importlib
import logging
from types import ModuleType

import torch

_log = logging.getLogger(__name__)


@functools.cache
def kernels_of(name: str, device: torch.device) -> ModuleType | None:
    """Return the kernel module `name`, or None if it cannot be used: torch's operations then do the work,
    slower."""
    if device.type != "cuda":
        return None
    try:
        # Import Triton here, because it comes only with torch builds for GPUs.
        kernels = importlib.import_module(f"dynotune.runtime.vision.{name}")
        if kernels.works(device):
            return kernels
        why = "their results are wrong"
    except torch.cuda.OutOfMemoryError:
        raise
    # Whatever goes wrong in a compiler that we only hope for: a C compiler that is missing, a GPU it does not
    # know.
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
    _log.warning("%s cannot be used, and torch's operations, which are slower, do the same: %s", name, why)
    return None
