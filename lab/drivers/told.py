"""How a driver tells what its framework counted and what it found set, a line of JSON on standard output, and
ends."""

import json
import os

import torch
import torch.distributed as dist


def tell(steps, samples, loader=None, optimizer=None):
    """Print it at once: ranks share standard output."""
    settings = {
        "host.num_threads": torch.get_num_threads(),
        "env.DYNOTUNE_NOTHING": os.environ.get("DYNOTUNE_NOTHING"),
    }
    if loader is not None:
        settings["loader.num_workers"] = loader.num_workers
    if optimizer is not None:
        settings["optimizer.fused"] = bool(optimizer.param_groups[0].get("fused"))
    told = json.dumps({"steps": steps, "samples": samples, "settings": settings})
    os.write(1, b"\nTOLD " + told.encode() + b"\n")


def end():
    """Of a rank: without the end of the interpreter, in which gloo's threads (torch 2.13) abort some
    processes."""
    if dist.is_initialized():
        dist.destroy_process_group()
        os._exit(0)
