"""Three modules one after the other, the second one called several times."""

import torch
from torch import nn

encoder, denoiser, decoder = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2)
num_steps = num_samples = 0
with torch.no_grad():
    for _ in range(12):
        x = encoder(torch.randn(2, 8))
        for _ in range(20):
            x = denoiser(x)
        decoder(x)
        num_steps += 1
        num_samples += 2
print("TRUTH", num_steps, num_samples)
