"""Five updates of the critic to one of the generator. A step is one update of the generator."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=4)
generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
for_generator = torch.optim.Adam(generator.parameters())
for_critic = torch.optim.Adam(critic.parameters())
num_steps = num_samples = 0
for index, (real,) in enumerate(loader):
    with torch.no_grad():
        fake = generator(torch.randn(len(real), 4))
    for_critic.zero_grad()
    (critic(fake).mean() - critic(real).mean()).backward()
    for_critic.step()
    num_samples += len(real)
    if index % 5 == 4:
        for_generator.zero_grad()
        (-critic(generator(torch.randn(4, 4))).mean()).backward()
        for_generator.step()
        num_steps += 1
print("TRUTH", num_steps, num_samples)
