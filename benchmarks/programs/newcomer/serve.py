"""A service that waits for requests of a thread."""

import queue
import random
import threading
import time

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
requests = queue.Queue()


def clients():
    rng = random.Random(0)
    while True:
        time.sleep(rng.expovariate(1 / 0.02))
        requests.put((time.perf_counter(), torch.randn(8, 256)))


threading.Thread(target=clients, daemon=True).start()
latencies = []
end = time.perf_counter() + 60
while time.perf_counter() < end:
    sent, x = requests.get()
    with torch.no_grad():
        model(x)
    latencies.append(time.perf_counter() - sent)
    if len(latencies) % 100 == 0:
        print("p50", sorted(latencies)[len(latencies) // 2])
