"""Decode JPEG files on the device: `decode_on_device` against torchvision's own call, and beside a model's
steps.

python decode_pictures.py [--size 600x800] [--quality 90] [--device cuda]

On a CPU the other call is Pillow's, one file after another.
"""

import argparse
import io
import json
import statistics
import threading
import time

import torch
from train_pictures import files, network

from dynotune.runtime.data import decode_on_device

ROUNDS = 5


def own_call(device):
    """Return what a program without dynotune would call."""
    if device == "cuda":
        from torchvision.io import ImageReadMode, decode_jpeg

        def decode(encoded):
            tensors = [torch.frombuffer(bytearray(each), dtype=torch.uint8) for each in encoded]
            return decode_jpeg(tensors, ImageReadMode.RGB, device)
    else:
        import numpy as np
        from PIL import Image

        def decode(encoded):
            return [
                torch.from_numpy(np.array(Image.open(io.BytesIO(each)).convert("RGB"))) for each in encoded
            ]

    return decode


def took(call, device):
    """Return how long a call takes, the device's work included."""
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def stepping(device):
    """Return a training step on one batch."""
    model = network(device).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.randn(128 if device == "cuda" else 16, 3, 224, 224, device=device)
    labels = torch.zeros(len(images), dtype=torch.long, device=device)

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", default="600x800")
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    encoded = [path.read_bytes() for path in files(given.size, given.quality)]
    own, batches = own_call(given.device), {}
    for size in (64, 256) if given.device == "cuda" else (16,):
        some = encoded[:size]
        calls = {
            "own": lambda some=some: own(some),
            "ours": lambda some=some: decode_on_device(some, given.device),
        }
        times = {name: [] for name in calls}
        for at in range(ROUNDS + 1):
            for name, call in calls.items():
                seconds = took(call, given.device)
                if at:  # the first warms up
                    times[name].append(seconds)
        batches[size] = {name: size / statistics.median(values) for name, values in times.items()}
    step, batch = stepping(given.device), encoded[: 128 if given.device == "cuda" else 16]
    for _ in range(5):
        step()
    alone = [took(step, given.device) for _ in range(20)]
    decode = [took(lambda: decode_on_device(batch, given.device), given.device) for _ in range(ROUNDS)]
    over, done = threading.Event(), []

    def beside():
        stream = torch.cuda.Stream() if given.device == "cuda" else None
        while not over.is_set():
            with torch.cuda.stream(stream):
                decode_on_device(batch, given.device)
            done.append(time.perf_counter())

    thread = threading.Thread(target=beside)
    thread.start()
    begin = time.perf_counter()
    loaded = []
    while len(loaded) < 20 and time.perf_counter() - begin < 20:
        at = time.perf_counter()
        step()
        loaded.append(time.perf_counter() - at)
    over.set()
    thread.join()
    result = {"alone_s": statistics.median(alone), "beside_s": statistics.median(loaded)}
    result |= {
        "decode_s": statistics.median(decode),
        "decoded_meanwhile": len(done) * len(batch),
        "batch": len(batch),
    }
    print(json.dumps({"batches": batches, "step": result}))


if __name__ == "__main__":
    main()
