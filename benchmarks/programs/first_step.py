"""One compiled training step, and what it found in torch's caches, as a line of JSON.

    python first_step.py --net NET [--device cpu] [--batch-size N] [--save FILE] [--load FILE]

`--save` and `--load` keep and take torch's own artifacts (`torch.compiler.save_cache_artifacts`).
"""

import argparse
import json
import time
from pathlib import Path

import compiled_nets
import torch
from torch._dynamo.utils import counters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--net", choices=compiled_nets.NETS, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--load", type=Path)
    args = parser.parse_args()
    imported_s = time.monotonic()
    if args.load:
        torch.compiler.load_cache_artifacts(args.load.read_bytes())
    torch.manual_seed(0)
    model, x = compiled_nets.model_and_batch(args.net, args.device, args.batch_size)
    torch.compile(model)(x).square().mean().backward()
    if args.device.startswith("cuda"):
        torch.cuda.synchronize()
    stepped_s = time.monotonic()
    kept = torch.compiler.save_cache_artifacts() if args.save else None
    if args.save and kept is not None:
        args.save.write_bytes(kept[0])
    found = {name: dict(counts) for name, counts in counters.items() if "cache" in name or "auto" in name}
    inductor = counters["inductor"]
    print(
        json.dumps(
            {
                "imported_s": imported_s,
                "stepped_s": stepped_s,
                "num_found": inductor["fxgraph_cache_hit"],
                "num_missed": inductor["fxgraph_cache_miss"],
                "counters": found,
                "artifacts": {} if kept is None else {name: len(v) for name, v in kept[1].artifacts.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
