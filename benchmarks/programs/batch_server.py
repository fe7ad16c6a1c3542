"""An inference server in one process: clients put frames into a queue, one worker batches them on the device.

    python benchmarks/programs/batch_server.py --clients 8 [--device cuda]

Each client sends a frame every 1/fps seconds and waits for its answer on a future, as a web handler would.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import pairwise

import numpy as np
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Net(nn.Module):
    """A small classifier over camera frames."""

    def __init__(self, width: int) -> None:
        super().__init__()
        chans = [3, width, 2 * width, 4 * width, 8 * width]
        self.body = nn.Sequential(*[Block(a, b, 2) for a, b in pairwise(chans)])
        self.head = nn.Linear(8 * width, 80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean((2, 3))).softmax(-1)


class Server:
    def __init__(self, net: nn.Module, device: str, side: int, max_batch: int, max_delay: float) -> None:
        self.net, self.device, self.side = net.to(device).eval(), device, side
        self.max_batch, self.max_delay = max_batch, max_delay
        self.queue: asyncio.Queue[tuple[np.ndarray, asyncio.Future]] = asyncio.Queue()

    async def infer(self, frame: np.ndarray) -> list[float]:
        answer = asyncio.get_running_loop().create_future()
        await self.queue.put((frame, answer))
        return await answer

    @torch.no_grad()
    def forward(self, frames: list[np.ndarray]) -> torch.Tensor:
        x = torch.from_numpy(np.stack(frames)).to(self.device)
        x = x.permute(0, 3, 1, 2).float() / 255
        x = nn.functional.interpolate(x, size=(self.side, self.side), mode="bilinear")
        return self.net(x).cpu()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.queue.get()]
            deadline = loop.time() + self.max_delay
            while len(batch) < self.max_batch and (left := deadline - loop.time()) > 0:
                try:
                    batch.append(await asyncio.wait_for(self.queue.get(), left))
                except TimeoutError:
                    break
            out = await loop.run_in_executor(None, self.forward, [frame for frame, _ in batch])
            for row, (_, answer) in zip(out.tolist(), batch, strict=True):
                answer.set_result(row)


async def client(server: Server, frames: list[np.ndarray], fps: float, offset: float) -> None:
    await asyncio.sleep(offset)
    start, n = time.monotonic(), 0
    while True:
        await server.infer(frames[n % len(frames)])
        n += 1
        await asyncio.sleep(max(0.0, start + n / fps - time.monotonic()))


async def serve(args: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (args.height, args.width, 3), dtype=np.uint8) for _ in range(16)]
    server = Server(Net(args.channels), args.device, args.side, args.max_batch, args.max_delay_ms / 1000)
    server.forward(frames[:1])
    jobs = [client(server, frames, args.fps, i / args.clients / args.fps) for i in range(args.clients)]
    await asyncio.gather(server.run(), *jobs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--fps", type=float, default=25)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--side", type=int, default=640)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--max-delay-ms", type=float, default=5)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=720)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
