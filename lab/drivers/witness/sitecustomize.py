"""Counts the steps of all optimizers and the samples that each was taken on, and tells at exit.

For programs that do not count by themselves; by other means than dynotune's. The samples are those of the
last call of an outermost module before the step: it is for programs that do not accumulate.
"""

import atexit
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
if words[1].endswith(os.environ["WITNESSED"].encode()):
    import torch
    from told import tell
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counts = {"steps": 0, "samples": 0, "last": 0, "depth": 0}

    def entered(module, inputs):
        if counts["depth"] == 0 and torch.is_grad_enabled():
            counts["last"] = len(inputs[0])
        counts["depth"] += 1

    def left(module, inputs, output):
        counts["depth"] -= 1

    def stepped(optimizer, args, kwargs):
        counts["steps"] += 1
        counts["samples"] += counts["last"]

    register_module_forward_pre_hook(entered)
    register_module_forward_hook(left)
    register_optimizer_step_post_hook(stepped)
    atexit.register(lambda: tell(counts["steps"], counts["samples"]))
