"""How a driver tells what its framework counted and what it found set: one line of JSON on standard output."""

import json
import os

import torch


def tell(steps, samples, loader=None, optimizer=None):
    """Print it at once: ranks share standard output."""
    settings = {"host.num_threads": torch.get_num_threads(), "env.DYNOTUNE_NOTHING": os.environ.get("DYNOTUNE_NOTHING")}
    if loader is not None:
        settings["loader.num_workers"] = loader.num_workers
    if optimizer is not None:
        settings["optimizer.fused"] = bool(optimizer.param_groups[0].get("fused"))
    told = json.dumps({"steps": steps, "samples": samples, "settings": settings})
    os.write(1, b"\nTOLD " + told.encode() + b"\n")
