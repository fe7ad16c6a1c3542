"""Semantic search back end: encode query batches, score the corpus, remember answers."""

import argparse
import gc
import time
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Hit:
    doc: int
    score: float


@dataclass
class Answer:
    query_id: int
    hits: list
    stamp: float


class AnswerCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.store = OrderedDict()

    def put(self, answer):
        self.store[answer.query_id] = answer

    def trim(self):
        while len(self.store) > self.capacity:
            self.store.popitem(last=False)

    def warm_from_log(self, top_k):
        for qid in range(-self.capacity, 0):
            self.put(Answer(qid, [Hit(qid + j, 1.0 - j * 0.01) for j in range(top_k)], 0.0))


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln_a, self.ln_m = nn.LayerNorm(d), nn.LayerNorm(d)
        self.wqkv, self.wo = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.w1, self.w2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        n, t, d = x.shape
        q, k, v = self.wqkv(self.ln_a(x)).view(n, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d)
        x = x + self.wo(a)
        return x + self.w2(F.gelu(self.w1(self.ln_m(x))))


class QueryEncoder(nn.Module):
    def __init__(self, vocab, d, depth, heads, max_len):
        super().__init__()
        self.tok = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(torch.randn(max_len, d) * 0.02)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))

    def forward(self, ids):
        x = self.tok(ids) + self.pos
        for b in self.blocks:
            x = b(x)
        return F.normalize(x.mean(1), dim=-1)


class SearchService:
    def __init__(self, device, n_docs, batch, seq, d, depth, heads, top_k, capacity):
        self.device, self.batch, self.seq, self.top_k = device, batch, seq, top_k
        self.cuda = device.type == "cuda"
        self.vocab = 30000
        self.encoder = QueryEncoder(self.vocab, d, depth, heads, seq).to(device, torch.bfloat16).eval()
        self.corpus = F.normalize(torch.randn(d, n_docs, device=device, dtype=torch.bfloat16), dim=0)
        self.cache = AnswerCache(capacity)
        self.cache.warm_from_log(top_k)
        self.next_id = 0

    def submit(self, ids):
        ids = ids.to(self.device, non_blocking=True)
        scores, docs = (self.encoder(ids) @ self.corpus).topk(self.top_k, dim=1)
        h_scores = torch.empty(scores.shape, dtype=scores.dtype, pin_memory=self.cuda)
        h_docs = torch.empty(docs.shape, dtype=docs.dtype, pin_memory=self.cuda)
        h_scores.copy_(scores, non_blocking=True)
        h_docs.copy_(docs, non_blocking=True)
        done = None
        if self.cuda:
            done = torch.cuda.Event()
            done.record()
        return h_scores, h_docs, done

    def finish(self, ticket):
        h_scores, h_docs, done = ticket
        if done is not None:
            done.synchronize()
        now = time.time()
        for s_row, d_row in zip(h_scores.tolist(), h_docs.tolist()):
            self.cache.put(Answer(self.next_id, [Hit(d, s) for d, s in zip(d_row, s_row)], now))
            self.next_id += 1
        self.cache.trim()


@torch.inference_mode()
def serve(args):
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.tiny:
        svc = SearchService(device, 500, 4, 8, 32, 1, 2, 4, 50)
    else:
        svc = SearchService(device, 400_000, 512, 64, 768, 12, 12, 16, 40_000)
    steps = args.steps or (6 if args.tiny else 480)
    inbox = [torch.randint(0, svc.vocab, (svc.batch, svc.seq)) for _ in range(8)]
    if svc.cuda:
        inbox = [t.pin_memory() for t in inbox]
    if args.fixed:
        gc.collect()
        gc.freeze()
        gc.disable()
    pending = svc.submit(inbox[0])
    for step in range(steps):
        if step == steps // 3:
            t0 = time.perf_counter()
        following = svc.submit(inbox[(step + 1) % len(inbox)])
        svc.finish(pending)
        pending = following
    mean = (time.perf_counter() - t0) / (steps - steps // 3)
    svc.finish(pending)
    print(f"answers cached: {len(svc.cache.store)}")
    print(f"steps={steps} mean_step_ms={mean * 1e3:.3f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--fixed", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    ap.add_argument("--steps", type=int)
    serve(ap.parse_args())
