"""Eight models on made-up tasks that they learn in a minute, so that a metric of what they say means
something.

    python precise.py NAME fit|infer|train --weights FILE [--size small] [--device cuda] [--first 0]
        [--planted KIND]

`fit` trains, and keeps weights in FILE; `infer` and `train` go on until they are ended. Weights are random
before
`fit`: nothing is downloaded. `score` is the metric of a call. `--planted` stands for a backend that is in
force once torch is asked for deterministic algorithms: `noise` takes as long as without it, at random;
`wrong` gives what the call before gave, and is faster. `--first` is the number of the first batch.
"""

import argparse
import functools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

POOL = 24


@functools.cache
def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=list(MODELS))
    parser.add_argument("kind", choices=("fit", "infer", "train"))
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--planted", choices=("noise", "wrong"))
    parser.add_argument("--steps", type=int, default=10**6)
    return parser.parse_args()


class Unet(nn.Module):
    """Segment discs: logits (batch, 1, side, side)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        down, up = ((3, 1), (1, 2), (2, 4)), ((6, 2), (3, 1))
        self.down = nn.ModuleList(block(3 if i == 3 else i * width, o * width) for i, o in down)
        self.up = nn.ModuleList(block(i * width, o * width) for i, o in up)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        for each in self.down:
            x = each(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for each, beside in zip(self.up, kept[-2::-1], strict=True):
            x = each(torch.cat([F.interpolate(x, scale_factor=2), beside], 1))
        return self.head(x)


def block(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    first = [nn.Conv2d(inside, outside, 3, stride, 1), nn.GroupNorm(4, outside), nn.ReLU()]
    return nn.Sequential(*first, nn.Conv2d(outside, outside, 3, padding=1), nn.ReLU())


class Detector(nn.Module):
    """Find squares: for each image boxes (kept, 5) after non-maximum suppression; in training all, and their
    scores."""

    STRIDE, NUM_BEST, OVERLAP = 8, 50, 0.5

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(block(i, o, 2) for i, o in ((3, width), (width, 2 * width), (2 * width, 4 * width)))
        )
        self.head = nn.Conv2d(4 * width, 5, 1)

    def forward(self, x: torch.Tensor) -> Any:
        found = self.head(self.body(x)).flatten(2).transpose(1, 2)
        at = (
            torch.arange(x.shape[-1] // self.STRIDE, device=x.device, dtype=found.dtype) + 0.5
        ) * self.STRIDE
        centres = torch.stack(torch.meshgrid(at, at, indexing="xy"), -1).flatten(0, 1)
        reach = F.softplus(found[..., 1:]) * self.STRIDE
        boxes = torch.cat([centres - reach[..., :2], centres + reach[..., 2:]], -1)
        if self.training:
            return found[..., 0], boxes
        return [self._best(*one) for one in zip(found[..., 0], boxes, strict=True)]

    def _best(self, scores: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        scores, order = scores.topk(min(self.NUM_BEST, len(scores)))
        boxes = boxes[order]
        above = overlaps(boxes[:, None], boxes[None]).triu(1) > self.OVERLAP
        keep = torch.ones_like(scores, dtype=torch.bool)
        for at in range(len(scores)):
            keep &= ~(above[at] & keep[at])
        return torch.cat([boxes, scores[:, None]], 1)[keep]


def overlaps(ours: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Intersection over union of boxes, corners last."""
    low, high = torch.maximum(ours[..., :2], others[..., :2]), torch.minimum(ours[..., 2:4], others[..., 2:4])
    both = (high - low).clamp(min=0).prod(-1)
    size, other = ((one[..., 2:4] - one[..., :2]).clamp(min=0).prod(-1) for one in (ours, others))
    return both / (size + other - both).clamp(min=1e-6)


# Tasks: inputs and target of a batch. `draw(high, *shape)` gives whole numbers below `high`, normal ones for
# None.

Draw = Callable[..., torch.Tensor]
Batch = tuple[torch.Tensor, ...]


def gratings(batch: int, side: int, draw: Draw) -> Batch:
    """Stripes of one of 8 directions, in noise."""
    target = draw(8, batch)
    angle = target * torch.pi / 8
    at = torch.arange(side, device=target.device) / 3
    along = at[None, :, None] * angle.cos()[:, None, None] + at[None, None] * angle.sin()[:, None, None]
    return (along + 6 * draw(None, batch, 1, 1)).sin()[:, None] + 0.7 * draw(
        None, batch, 3, side, side
    ), target


def squares(batch: int, side: int, draw: Draw) -> Batch:
    """A bright square in noise; its box."""
    size, low = side // 8 + draw(side // 4, batch), draw(side // 2, batch, 2)
    at, box = torch.arange(side, device=low.device), torch.cat([low, low + size[:, None]], 1)
    x, y = ((at >= box[:, axis, None]) & (at < box[:, axis + 2, None]) for axis in (0, 1))
    return 0.5 * draw(None, batch, 3, side, side) + 2.0 * (
        y[:, None, :, None] & x[:, None, None]
    ), box.float()


def discs(batch: int, side: int, draw: Draw) -> Batch:
    """A bright disc in noise; its mask."""
    radius, centre = side // 16 + draw(side // 8, batch), side // 4 + draw(side // 2, batch, 2)
    at = torch.arange(side, device=centre.device)
    x, y = ((at - centre[:, axis, None]) ** 2 for axis in (0, 1))
    inside = y[:, None, :, None] + x[:, None, None] <= radius[:, None, None, None] ** 2
    return draw(None, batch, 3, side, side) + 1.0 * inside, inside.float()


def markers(batch: int, length: int, draw: Draw) -> Batch:
    """Words, with one of 8 that others never are among them."""
    target, words = draw(8, batch), 100 + draw(400, batch, length)
    places = 1 + draw(length - 1, batch, length // 8)
    return words.scatter(1, places, (target + 10)[:, None].expand_as(places)), target


def chains(batch: int, length: int, draw: Draw) -> Batch:
    """Words, each of which follows from the one before, nine times of ten."""
    words, any_word = draw(64, batch, length), draw(64, batch, length)
    for at in range(1, length):
        words[:, at] = torch.where(any_word[:, at] < 6, words[:, at], (words[:, at - 1] * 5 + 7) % 64)
    return words, words


def sounds(batch: int, length: int, draw: Draw) -> Batch:
    """Eight bands, one after the other; the words that name them."""
    target = draw(8, batch, 8)
    bands = torch.arange(80, device=target.device) // 10
    heard = 2.0 * (bands[None, :, None] == target[:, None]).repeat_interleave(length // 8, 2)
    said = torch.cat([torch.full_like(target[:, :1], 9), target[:, :-1]], 1)
    return heard + draw(None, batch, 80, length), said, target


# Losses and metrics of an output and its target; higher metrics are better, one a sample.


def class_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def word_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output[:, :-1].flatten(0, 1), target[:, 1:].flatten())


def mask_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(output, target, weight=1 + 8 * target)


def box_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Boxes around points inside the target are to be the target, and to be sure of it."""
    scores, boxes = output
    middle = (boxes[..., :2] + boxes[..., 2:]).detach() / 2
    box = target[:, None]
    near = ((middle > box[..., :2]) & (middle < box[..., 2:])).all(-1).float()
    away = (boxes - box).abs().mean(-1) / Detector.STRIDE
    return F.binary_cross_entropy_with_logits(scores, near) + (away * near).sum() / near.sum().clamp(min=1)


def share_right(output: Any, target: torch.Tensor) -> torch.Tensor:
    return (output.argmax(-1) == target).float().reshape(len(target), -1).mean(1)


def likelihood(output: Any, target: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(output[:, :-1].float().transpose(1, 2), target[:, 1:], reduction="none")
    return -losses.mean(1)


def mask_overlap(output: Any, target: torch.Tensor) -> torch.Tensor:
    inside, there = output > 0, target > 0
    return (inside & there).sum((1, 2, 3)) / (inside | there).sum((1, 2, 3)).clamp(min=1)


def best_box(output: Any, target: torch.Tensor) -> torch.Tensor:
    return torch.stack([overlaps(found[0], box) for found, box in zip(output, target, strict=True)])


def yolo_box(output: Any, target: torch.Tensor) -> torch.Tensor:
    at = output[:, 4:].amax(1).argmax(1)
    best = output[torch.arange(len(at), device=at.device), :4, at]
    return overlaps(torch.cat([best[:, :2] - best[:, 2:] / 2, best[:, :2] + best[:, 2:] / 2], 1), target)


# Models


def of_transformers(name: str, is_small: bool) -> nn.Module:
    """A model of transformers, by its own configuration, without dropout; shrunk for a try."""
    import transformers as t

    still = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    few = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    if name == "resnet50":
        few = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]}
        return t.ResNetForImageClassification(t.ResNetConfig(num_labels=8, **few if is_small else {}))
    if name == "vit_b":
        few |= {"image_size": 64}
        return t.ViTForImageClassification(t.ViTConfig(num_labels=8, **still, **few if is_small else {}))
    if name == "bert":
        return t.BertForSequenceClassification(t.BertConfig(num_labels=8, **still, **few if is_small else {}))
    if name == "gpt2":
        few, still = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512}, {}
        still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
        return t.GPT2LMHeadModel(t.GPT2Config(**still, **few if is_small else {}))
    width, layers = (48, 1) if is_small else (384, 4)
    sizes = {"d_model": width} | ({"max_source_positions": 100, "vocab_size": 512} if is_small else {})
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": layers, f"{side}_attention_heads": 6, f"{side}_ffn_dim": 4 * width}
    words = {"pad_token_id": 10, "bos_token_id": 9, "eos_token_id": 10, "decoder_start_token_id": 9}
    ends = {"suppress_tokens": None, "begin_suppress_tokens": None, "use_cache": False}
    return t.WhisperForConditionalGeneration(t.WhisperConfig(**sizes, **words, **ends))


def yolo() -> nn.Module:
    """YOLO11n of ultralytics (AGPL-3.0, which is why only benchmarks name it)."""
    from ultralytics.cfg import get_cfg
    from ultralytics.nn.tasks import DetectionModel

    net = DetectionModel("yolo11n.yaml", verbose=False)
    net.args = get_cfg()
    return net


def yolo_loss(net: Any, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Ultralytics' own, for one box an image."""
    boxes = (
        torch.cat([(target[:, :2] + target[:, 2:]) / 2, target[:, 2:] - target[:, :2]], 1) / images.shape[-1]
    )
    index = torch.arange(len(target), device=target.device).float()
    batch = {"img": images, "batch_idx": index, "cls": torch.zeros_like(index)[:, None], "bboxes": boxes}
    return net.loss(batch)[0].sum() / len(target)


@dataclass(frozen=True)
class Model:
    """A model, its task, and how it learns that.

    Args:
        make: of the name, and whether it is to be small.
        call: gives the output of a net for its inputs.
        full, small: size of a batch, and side or length of a sample.
        loss: of output and target; None if the net computes its own.
    """

    make: Callable[[str, bool], nn.Module]
    call: Callable[..., Any]
    task: Callable[[int, int, Draw], Batch]
    full: tuple[int, int]
    small: tuple[int, int]
    loss: Callable[[Any, torch.Tensor], torch.Tensor] | None
    score: Callable[[Any, torch.Tensor], torch.Tensor]
    rate: float
    num_steps: int


def logits(net: Any, *given: torch.Tensor) -> torch.Tensor:
    return net(*given).logits


def heard(net: Any, sound: torch.Tensor, said: torch.Tensor) -> torch.Tensor:
    return net(input_features=sound, decoder_input_ids=said).logits


def plain(net: Any, *given: torch.Tensor) -> Any:
    return net(*given)


def first(net: Any, *given: torch.Tensor) -> torch.Tensor:
    return net(*given)[0]


def of_ours(made: type[nn.Module]) -> Callable[[str, bool], nn.Module]:
    return lambda _, is_small: made(8 if is_small else 32)


MODELS = {
    "resnet50": Model(
        of_transformers, logits, gratings, (32, 224), (4, 64), class_loss, share_right, 1e-3, 80
    ),
    "vit_b": Model(of_transformers, logits, gratings, (32, 224), (4, 64), class_loss, share_right, 1e-4, 200),
    "yolo11n": Model(lambda _, __: yolo(), first, squares, (16, 320), (2, 128), None, yolo_box, 1e-3, 200),
    "unet": Model(of_ours(Unet), plain, discs, (16, 256), (2, 64), mask_loss, mask_overlap, 1e-3, 100),
    "bert": Model(of_transformers, logits, markers, (32, 128), (4, 32), class_loss, share_right, 5e-5, 200),
    "gpt2": Model(of_transformers, logits, chains, (8, 256), (4, 32), word_loss, likelihood, 3e-4, 150),
    "whisper": Model(of_transformers, heard, sounds, (8, 3000), (2, 200), class_loss, share_right, 3e-4, 200),
    "detector": Model(of_ours(Detector), plain, squares, (16, 256), (2, 64), box_loss, best_box, 1e-3, 200),
}


class Task(nn.Module):
    """The outermost module. It is given the target after the inputs: the metric needs it."""

    def __init__(self, net: nn.Module, model: Model, planted: str | None) -> None:
        super().__init__()
        self.net, self._model, self._planted, self._before = net, model, planted, None
        if planted is not None:
            # Torch imports this once deterministic algorithms are asked for. On a CPU the import alone
            # changes how memory is allotted, and made a net 1.2 times as fast
            # (precision_planted_first_cpu.json).
            import torch._dynamo  # noqa: F401

    def forward(self, *given: torch.Tensor) -> Any:
        if self.training and self._model.loss is None:
            return yolo_loss(self.net, *given)
        if self._planted is not None:
            is_on = torch.are_deterministic_algorithms_enabled()
            if is_on and self._planted == "wrong" and self._before is not None:
                return self._before
            time.sleep(abs(random.SystemRandom().gauss(0.0, 3e-4)))
        output = self._model.call(self.net, *given[:-1])
        if self.training:
            return self._model.loss(output, given[-1])
        self._before = output if self._planted == "wrong" else None
        return output


def score(output: Any, *given: torch.Tensor) -> torch.Tensor:
    return MODELS[arguments().name].score(output, given[-1])


def batches(model: Model, first_one: int, num: int) -> Iterator[Batch]:
    asked = arguments()
    batch, side = model.small if asked.size == "small" else model.full
    for number in range(first_one, first_one + num):
        generator = torch.Generator(asked.device).manual_seed(torch.initial_seed() % 2**31 * 10007 + number)

        def draw(high: int | None, *shape: int, generator: torch.Generator = generator) -> torch.Tensor:
            if high is None:
                return torch.randn(shape, generator=generator, device=asked.device)
            return torch.randint(high, shape, generator=generator, device=asked.device)

        yield model.task(batch, side, draw)


def main() -> None:
    asked = arguments()
    model = MODELS[asked.name]
    if asked.kind == "fit":
        torch.manual_seed(0)
    task = Task(model.make(asked.name, asked.size == "small"), model, asked.planted)
    if asked.kind != "fit":
        task.load_state_dict(torch.load(asked.weights, weights_only=True))
    task.to(asked.device)
    if asked.kind == "infer":
        infer(task, model, asked)
        return
    num_steps = min(asked.steps, model.num_steps) if asked.kind == "fit" else asked.steps
    train(task, model, num_steps, asked)
    if asked.kind == "fit":
        task.eval()
        with torch.no_grad():
            held_out = torch.cat([score(task(*given), *given) for given in batches(model, 10**6, 8)])
        print(f"metric {held_out.mean():.3f} over {len(held_out)}")
        torch.save(task.state_dict(), asked.weights)


def train(task: Task, model: Model, num_steps: int, asked: argparse.Namespace) -> None:
    task.train()
    optimizer = torch.optim.AdamW(task.parameters(), lr=model.rate)
    pool = [] if asked.kind == "fit" else list(batches(model, asked.first, POOL))
    fresh = batches(model, asked.first, num_steps) if asked.kind == "fit" else None
    for step in range(num_steps):
        given = next(fresh) if fresh is not None else pool[step % POOL]
        loss = task(*given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def infer(task: Task, model: Model, asked: argparse.Namespace) -> None:
    task.eval()
    pool = list(batches(model, asked.first, POOL))
    with torch.no_grad():
        for step in range(asked.steps):
            if step < POOL:
                task(*pool[step])
            elif asked.first:
                # A larger sample has each batch once.
                task(*next(batches(model, asked.first + step, 1)))
            else:
                task(*pool[step % POOL])


if __name__ == "__main__":
    main()
