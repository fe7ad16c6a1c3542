"""Trains a recurrent network: some of its sequences go through a cell that Python calls for each time
step."""

import loop
import torch
from torch import Tensor, nn

STEPS_OF_A_SEQUENCE, ROWS, WIDTH, HIDDEN = {"cpu": 64, "cuda": 256}, 16, 24, 32


class Cell(nn.Module):
    """One time step of a gated unit."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Linear(WIDTH + HIDDEN, 2 * HIDDEN)
        self.new = nn.Linear(WIDTH + HIDDEN, HIDDEN)

    def forward(self, row: Tensor, state: Tensor) -> Tensor:
        keep, reset = torch.sigmoid(self.gates(torch.cat((row, state), 1))).chunk(2, 1)
        return keep * state + (1 - keep) * torch.tanh(self.new(torch.cat((row, reset * state), 1)))


class Net(nn.Module):
    """A whole-sequence unit of torch over `num_whole` sequences, and the cell over one more where
    `by_step`."""

    def __init__(self, num_whole: int, by_step: bool) -> None:
        super().__init__()
        self.num_whole = num_whole
        self.unit, self.cell = nn.GRU(WIDTH, HIDDEN), Cell() if by_step else None
        self.head = nn.Linear(HIDDEN, 8)

    def forward(self, rows: Tensor) -> Tensor:
        outs = [self.head(self.unit(rows)[0][-1]) for _ in range(self.num_whole)]
        if self.cell is not None:
            state = rows.new_zeros(rows.size(1), HIDDEN)
            for row in rows:
                state = self.cell(row, state)
            outs.append(self.head(state))
        return torch.stack(outs).mean(0)


def train_step(net: Net, optimizer: torch.optim.Optimizer, rows: Tensor, classes: Tensor) -> None:
    loss = nn.functional.cross_entropy(net(rows), classes)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    args = loop.parser().parse_args()
    rows = torch.randn(STEPS_OF_A_SEQUENCE[args.device], ROWS, WIDTH, device=args.device)
    classes = torch.randint(8, (ROWS,), device=args.device)

    def seconds(num_whole: int, by_step: bool) -> float:
        net = Net(num_whole, by_step).to(args.device)
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        return loop.seconds_of(lambda: train_step(net, optimizer, rows, classes), args.device)

    # One loop is the fault; so many whole sequences beside it make it the share that the dose asks for.
    one_s = seconds(1, by_step=False)
    loop_s = seconds(1, by_step=True) - one_s
    num_whole = max(1, round(loop_s * (100 - args.dose) / args.dose / one_s)) if args.dose else 4
    net = Net(num_whole, by_step=args.dose > 0).to(args.device)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for _ in loop.steps(args.steps, args.device):
        train_step(net, optimizer, rows, classes)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
