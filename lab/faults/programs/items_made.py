"""Trains on items that are made in one usual but slow way, `--made`; the twin has them ready. A worker makes
them."""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import loop
import numpy as np
import series
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

MEMBERS, WORDS, PAD_TO = 400, 400, 64


class Archive:
    """An item is a member of an archive that is opened for it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "items.zip"
        with zipfile.ZipFile(self.path, "w") as archive:
            for number in range(MEMBERS):
                archive.writestr(f"{number}.bin", bytes(64))

    def once(self) -> None:
        with zipfile.ZipFile(self.path) as archive:
            archive.read("7.bin")


class Table:
    """An item is a row that a database looks for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "items.db"
        with sqlite3.connect(self.path) as table:
            table.execute("create table items (name, value)")
            table.executemany(
                "insert into items values (?, ?)", [(str(number), number) for number in range(5000)]
            )
        self.table: sqlite3.Connection | None = None

    def once(self) -> None:
        if self.table is None:
            self.table = sqlite3.connect(self.path)
        self.table.execute("select value from items where name = ?", ("77",)).fetchone()


class Whole:
    """An item is a row of an array, all of which is copied for it."""

    def __init__(self, folder: Path) -> None:
        self.array = np.zeros((1000, 256), dtype=np.float32)

    def once(self) -> None:
        self.array.copy()[3]


class Tokens:
    """An item is a text that becomes numbers."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        self.tokenizer = Tokenizer(
            models.WordLevel({str(number): number for number in range(999)}, unk_token="0")
        )
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.text = " ".join(str(number) for number in range(WORDS))

    def once(self) -> None:
        self.tokenizer.encode(self.text)


class Smaller:
    """An item is a picture that is made smaller."""

    def __init__(self, folder: Path) -> None:
        from PIL import Image

        self.picture = Image.fromarray(np.zeros((600, 600, 3), dtype=np.uint8))

    def once(self) -> None:
        self.picture.resize((64, 64))


class Warp:
    """A transform of the program's own."""

    def __call__(self, values: np.ndarray) -> np.ndarray:
        for _ in range(8):
            values = np.sin(values)
        return values


class Transformed:
    """An item goes through a transform."""

    def __init__(self, folder: Path) -> None:
        self.values, self.warp = np.ones(4000), Warp()

    def once(self) -> None:
        self.warp(self.values)


class Locked:
    """An item needs a lock that another thread has most of the time."""

    def __init__(self, folder: Path) -> None:
        self.lock: threading.Lock | None = None

    def _holds(self, lock: threading.Lock) -> None:
        while True:
            with lock:
                time.sleep(0.001)

    def once(self) -> None:
        if self.lock is None:
            self.lock = threading.Lock()
            threading.Thread(target=self._holds, args=(self.lock,), daemon=True).start()
        with self.lock:
            pass


MADE: dict[str, Callable[[Path], object]] = {
    "archive": Archive, "table": Table, "whole": Whole, "tokens": Tokens, "smaller": Smaller,
    "transformed": Transformed, "locked": Locked,
}  # fmt: skip


class Items(Dataset):
    """Windows for each of which something is done `num` times."""

    def __init__(self, size: series.Size, made: object, num: int) -> None:
        self.windows, self.made, self.num = series.Series(size), made, num

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        for _ in range(self.num):
            self.made.once()
        return self.windows[index]


class Rows(Dataset):
    """Items with Python objects beside them, `num` a batch."""

    def __init__(self, size: series.Size, num: int) -> None:
        self.windows, self.num = series.Series(size), num // size.batch

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> tuple[Tensor, int, list[list[str]]]:
        window, label = self.windows[index]
        return window, label, [[str(number)] for number in range(self.num)]


def rows(samples: list[tuple[Tensor, int, list[list[str]]]]) -> tuple[Tensor, Tensor, list[list[list[str]]]]:
    windows, labels, objects = zip(*samples, strict=True)
    return torch.stack(windows), torch.tensor(labels), list(objects)


class Stream(IterableDataset):
    """Windows one after another: the same in each worker, or each its own."""

    def __init__(self, size: series.Size, splits: bool) -> None:
        self.windows, self.splits = series.Series(size), splits

    def __iter__(self):
        worker = torch.utils.data.get_worker_info() if self.splits else None
        first, step = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        return (self.windows[index] for index in range(first, len(self.windows), step))


class Everywhere(IterableDataset):
    """The same without asking for the worker."""

    def __init__(self, size: series.Size) -> None:
        self.windows = series.Series(size)

    def __iter__(self):
        return (self.windows[index] for index in range(len(self.windows)))


class Texts(Dataset):
    """Rows of whole numbers, `share` of them padding, and a mask."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __len__(self) -> int:
        return 10_000_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        least = max(1, round(PAD_TO * (1 - 2 * self.share)))
        length = PAD_TO if index % 2 else least
        kept = torch.arange(PAD_TO) < length
        return {"input_ids": torch.where(kept, torch.arange(1, PAD_TO + 1), 0), "attention_mask": kept.long()}


def reads(dataset: Texts, args: argparse.Namespace) -> None:
    """A step of layers over every place of a row, padding or not."""
    width = 256 if args.device == "cpu" else 4096
    net = nn.Sequential(nn.Embedding(PAD_TO + 1, width), *(nn.Linear(width, width) for _ in range(4))).to(
        args.device
    )
    optimizer = series.sgd(net, args.device)
    loader = DataLoader(dataset, 16, num_workers=1, persistent_workers=True)
    for _, batch in zip(loop.steps(args.steps, args.device), loader, strict=False):
        hidden = net(batch["input_ids"].to(args.device))
        (hidden.float().mean(-1) * batch["attention_mask"].to(args.device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = loop.parser()
    parser.add_argument("--made", choices=[*MADE, "rows", "stream", "padded"], required=True)
    args = parser.parse_args()
    if args.made == "padded":
        reads(Texts(args.dose / 100), args)
        return
    size, collate, workers = series.SIZES[args.device], None, 1
    work_s = series.step_s(size, args.device)
    batch_s = loop.period_s(args.dose, work_s) if args.dose else 0.0
    with tempfile.TemporaryDirectory() as folder:
        if args.made == "stream":
            dataset, workers = Everywhere(size) if args.dose else Stream(size, splits=True), 2
        elif args.made == "rows":
            dataset, collate = Rows(size, round(batch_s * 600_000)), rows
        else:
            made = MADE[args.made](Path(folder))
            once_s = 0.001 if args.made == "locked" else loop.seconds_of(made.once, "cpu", 0.2)
            dataset = Items(size, made, max(1, round(batch_s / size.batch / once_s)) if args.dose else 0)
            if args.made == "table":
                made.table = None
        loader = DataLoader(
            dataset, size.batch, num_workers=workers, persistent_workers=True, collate_fn=collate
        )
        net = series.Net(size).to(args.device)
        optimizer = series.sgd(net, args.device)
        for _, (windows, classes, *_) in zip(loop.steps(args.steps, args.device), loader, strict=False):
            series.train_step(net, optimizer, windows, classes, args.device)


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
