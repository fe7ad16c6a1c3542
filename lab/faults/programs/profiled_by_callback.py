"""Trains a small language model with transformers' Trainer; a callback profiles a few of the first steps."""

import tempfile

import loop
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Trainer, TrainerCallback, TrainingArguments

VOCABULARY, LENGTH, WIDTH = 256, 32, 64
LAYERS = {"cpu": 2, "cuda": 24}


class Texts(torch.utils.data.Dataset):
    """Rows of random tokens, each its own label."""

    def __init__(self, num: int) -> None:
        self.tokens = torch.randint(VOCABULARY, (num, LENGTH))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"tokens": self.tokens[index], "labels": self.tokens[index]}


class LanguageModel(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.head(self.layers(self.embedding(tokens)))
        return {"loss": F.cross_entropy(scores.flatten(0, 1), labels.flatten()), "scores": scores}


class Profile(TrainerCallback):
    """Profile three steps near the start."""

    def on_train_begin(self, args, state, control, **kwargs):
        self.profile = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=2, warmup=1, active=3, repeat=1),
            on_trace_ready=lambda profile: print(len(profile.key_averages()), "operators", flush=True),
        )
        self.profile.start()

    def on_step_end(self, args, state, control, **kwargs):
        self.profile.step()

    def on_train_end(self, args, state, control, **kwargs):
        self.profile.stop()


class Rate(TrainerCallback):
    """Count steps as the other programs do."""

    def __init__(self, steps: int, device: str) -> None:
        self.steps = loop.steps(steps, device)

    def on_step_begin(self, args, state, control, **kwargs):
        next(self.steps)

    def on_train_end(self, args, state, control, **kwargs):
        next(self.steps, None)


def main() -> None:
    args = loop.parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=args.steps,
            per_device_train_batch_size=8,
            use_cpu=args.device == "cpu",
            dataloader_pin_memory=args.device == "cuda",
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        callbacks = [Rate(args.steps, args.device), *([Profile()] if args.dose else [])]
        net = LanguageModel(LAYERS[args.device])
        Trainer(net, arguments, train_dataset=Texts(65_536), callbacks=callbacks).train()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
