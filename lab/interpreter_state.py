"""What an agent could leave in an interpreter that has torch, in a form that can be compared."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any


def interpreter_state() -> dict[str, Any]:
    """Return attributes of classes and modules that an agent replaces, and counts of what it registers."""
    torch: Any = importlib.import_module("torch")
    optimizers: Any = importlib.import_module("torch.optim.optimizer")
    loading, data = torch.utils.data.dataloader, torch.utils.data._utils
    owners = {
        "Module": torch.nn.Module,
        "Sequential": torch.nn.Sequential,
        "Linear": torch.nn.Linear,
        "DataLoader": loading.DataLoader,
        "iterator": loading._BaseDataLoaderIter,
        "kinds": loading._DatasetKind,
        "Optimizer": optimizers.Optimizer,
        "GradScaler": torch.amp.grad_scaler.GradScaler,
        "Tensor": torch.Tensor,
        "profiler": torch.autograd.profiler,
        "record_function": torch.autograd.profiler.record_function,
        "torch": torch,
        "cuda": torch.cuda,
        "memory": torch.cuda.memory,
        "worker": data.worker,
        "pin_memory": data.pin_memory,
        "os": os,
    }
    found: dict[str, Any] = {
        f"{name}.{key}": id(value) for name, owner in owners.items() for key, value in vars(owner).items()
    }
    if sys.version_info >= (3, 14):
        # Before, a file stays mapped as long as the process lives, and exit handlers are counted for good.
        maps = Path("/proc/self/maps").read_text().splitlines()
        found["maps"] = sorted(line.split()[-1] for line in maps if line.endswith((".rec", ".page")))
        found["atexit"] = atexit._ncallbacks()
    return found | {
        "hooks": len(optimizers._global_optimizer_pre_hooks) + len(optimizers._global_optimizer_post_hooks),
        "gc.callbacks": len(gc.callbacks),
        "sys.meta_path": len(sys.meta_path),
        "switch interval": sys.getswitchinterval(),
        "modules": sorted(name for name in sys.modules if "_dynotune_agent" in name),
        "cached paths": sorted(path for path in sys.path_importer_cache if "/dynotune/agent" in path),
    }
