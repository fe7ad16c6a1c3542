"""A small GPT with attention written out."""

import math

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d=128, h=4):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        att = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mask = torch.tril(torch.ones(t, t, device=x.device))
        att = att.masked_fill(mask == 0, float("-inf")).softmax(-1)
        att = self.drop(att)
        x = x + self.out((att @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.n2(x))


model = nn.Sequential(nn.Embedding(100, 128), Block(), Block(), nn.Linear(128, 100))
opt = torch.optim.AdamW(model.parameters())
for _ in range(1000):
    x = torch.randint(0, 100, (4, 128))
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), x.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
