"""Training on the GPU with mixed precision and a loader with workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    loader = DataLoader(
        TensorDataset(torch.randn(100, 64), torch.randn(100, 8)), 16, num_workers=2, pin_memory=True
    )
    net, scaler = nn.Linear(64, 8).cuda(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(5):
        for x, y in loader:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(net(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    print("TRUTH", 35, 500)
