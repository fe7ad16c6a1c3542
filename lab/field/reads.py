"""What the published programs read, made up: of the sizes that the real data have, in the formats that they
ask for.

Each function fills the folder that a program is started in, for a device: on a CPU there is less.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from lab.tuning.programs import photographs
from lab.yolo import photographs as yolo_photographs

NUM_LINKED = {"cuda": 25_600, "cpu": 640}


def characters(folder: Path, device: str) -> None:
    """As nanoGPT's data/shakespeare_char/prepare.py leaves behind, of as many characters as Shakespeare wrote
    there."""
    import numpy as np

    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, num in (("train", 1_003_854), ("val", 111_540)):
        rng.integers(0, 65, num, dtype=np.uint16).tofile(data / f"{name}.bin")
    letters = dict(enumerate(map(chr, range(32, 32 + 65))))
    meta = {"vocab_size": 65, "itos": letters, "stoi": {letter: number for number, letter in letters.items()}}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))


def _lines(num_words: int, num_known: int, seed: int) -> Iterator[str]:
    """Words that are about as frequent as those of a language, sixty a line."""
    import numpy as np

    rng = np.random.default_rng(seed)
    drawn = np.minimum(rng.zipf(1.2, num_words), num_known) - 1
    for first in range(0, num_words, 60):
        yield " ".join(f"w{number}" for number in drawn[first : first + 60]) + "\n"


def corpus(folder: Path, device: str) -> None:
    """A text for word_language_model, half as long as Wikitext-2, with as many different words."""
    known = {"cuda": 33_278, "cpu": 500}[device]
    data = folder / "data" / "wikitext-2"
    data.mkdir(parents=True, exist_ok=True)
    for seed, (name, num) in enumerate((("train", 1_000_000), ("valid", 20_000), ("test", 20_000))):
        # Each word once: how many there are makes the last layer.
        every = " ".join(f"w{number}" for number in range(known)) + "\n" if name == "train" else ""
        (data / f"{name}.txt").write_text(every + "".join(_lines(num, known, seed)))


def text_and_tokenizer(folder: Path, device: str) -> None:
    """A text, and a tokenizer that knows its words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = 5_000
    (folder / "text.txt").write_text("".join(_lines({"cuda": 800_000, "cpu": 60_000}[device], known, 0)))
    vocabulary = {"<unk>": 0, **{f"w{number}": number + 1 for number in range(known)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", model_max_length=1024)
    fast.save_pretrained(folder / "tokenizer")


def classes_of_pictures(folder: Path, device: str) -> None:
    """256 JPEG files under many names, in ten classes, as torchvision's ImageFolder reads them."""
    photographs(folder)
    files = sorted((folder / "pictures").iterdir())
    for part, num in (("train", NUM_LINKED[device]), ("val", 256 if device == "cuda" else 32)):
        for number, file in zip(range(num), itertools.cycle(files), strict=False):
            linked = folder / "classes" / part / str(number % 10) / f"{number:05}.jpg"
            linked.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, linked)


def detection(folder: Path, device: str) -> None:
    """The pictures with objects of the diagnosed frameworks; under many names, for prediction."""
    yolo_photographs(folder)
    data = json.loads((folder / "data.yaml").read_text())
    many = folder / "many"
    many.mkdir()
    files = sorted((Path(data["path"]) / data["train"]).iterdir())
    for number, file in zip(range({"cuda": 6_400, "cpu": 640}[device]), itertools.cycle(files), strict=False):
        os.link(file, many / f"{number:05}.jpg")


def play(folder: Path, device: str) -> None:
    """`input.txt`: as many characters as Shakespeare's plays have there, and the same 65."""
    import numpy as np

    letters = "\n !$&',-.3:;?" + "".join(chr(65 + k) + chr(97 + k) for k in range(26))
    rng = np.random.default_rng(0)
    drawn = rng.choice(np.array(list(letters)), 1_115_394)
    (folder / "input.txt").write_text("O God, O God!\n" + "".join(drawn))


def digits(folder: Path, device: str) -> None:
    """MNIST's files, beside the folder: `../data`. Ten pictures, each with noise."""
    import numpy as np

    raw = folder.parent / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    shapes = (rng.random((10, 28, 28)) * 128).astype(np.uint8)
    for name, num in (("train", 60_000), ("t10k", 10_000)):
        labels = rng.integers(0, 10, num, dtype=np.uint8)
        pictures = shapes[labels] + rng.integers(0, 127, (num, 28, 28), dtype=np.uint8)
        head = struct.pack(">IIII", 2051, num, 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head + pictures.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, num) + labels.tobytes())


def tensors_of_cifar(folder: Path, device: str) -> None:
    """CIFAR-10 as cifar10-airbench keeps it: a file of tensors for each part."""
    import torch

    lot = torch.Generator().manual_seed(0)
    (folder / "cifar10").mkdir(exist_ok=True)
    shapes = torch.randint(0, 128, (10, 32, 32, 3), generator=lot, dtype=torch.uint8)
    for name, num in (("train", 50_000), ("test", 10_000)):
        labels = torch.randint(0, 10, (num,), generator=lot)
        noise = torch.randint(0, 127, (num, 32, 32, 3), generator=lot, dtype=torch.uint8)
        kept = {"images": shapes[labels] + noise, "labels": labels, "classes": [str(k) for k in range(10)]}
        torch.save(kept, folder / "cifar10" / f"{name}.pt")


def bytes_of_enwik8(folder: Path, device: str) -> None:
    """The first 95 MB of enwik8, as x-transformers reads them."""
    text = "".join(_lines(200_000, 20_000, 0)).encode()
    (folder / "data").mkdir(exist_ok=True)
    with gzip.open(folder / "data" / "enwik8.gz", "wb", compresslevel=1) as file:
        for _ in range(-(-95_100_000 // len(text))):
            file.write(text)


def citations(folder: Path, device: str) -> None:
    """Cora: 2708 papers with 1433 words each way, and who cites whom."""
    import numpy as np

    rng = np.random.default_rng(0)
    (folder / "cora").mkdir(exist_ok=True)
    words = (rng.random((2708, 1433)) < 0.013).astype(int)
    words[:, 0] = 1
    kinds = rng.integers(0, 7, 2708)
    rows = (
        f"{n} {' '.join(map(str, row))} kind{kind}"
        for n, (row, kind) in enumerate(zip(words, kinds, strict=True))
    )
    (folder / "cora" / "cora.content").write_text("\n".join(rows) + "\n")
    pairs = rng.integers(0, 2708, (5429, 2))
    (folder / "cora" / "cora.cites").write_text("".join(f"{one} {other}\n" for one, other in pairs))


def pictures_of_bsds(folder: Path, device: str) -> None:
    """BSDS300: 200 pictures to train on and 100 to test, 481 by 321."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, num in (("train", 200), ("test", 100)):
        there = folder / "dataset" / "BSDS300" / "images" / part
        there.mkdir(parents=True, exist_ok=True)
        for number in range(num if device == "cuda" else num // 5):
            coarse = Image.fromarray(rng.integers(0, 255, (40, 60, 3), dtype=np.uint8))
            coarse.resize((481, 321), Image.Resampling.BICUBIC).save(there / f"{number}.jpg", quality=90)


def pictures_and_masks(folder: Path, device: str) -> None:
    """Carvana's cars for Pytorch-UNet: pictures of 1918 by 1280 and a mask of each; on a CPU an eighth."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    size, num = {"cuda": ((1918, 1280), 128), "cpu": ((240, 160), 128)}[device]
    for part in ("imgs", "masks"):
        (folder / "data" / part).mkdir(parents=True, exist_ok=True)
    for number in range(num):
        coarse = Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8))
        coarse.resize(size, Image.Resampling.BICUBIC).save(folder / "data" / "imgs" / f"{number:03}.jpg")
        inside = Image.fromarray((rng.random((4, 6)) < 0.5).astype(np.uint8))
        inside.resize(size, Image.Resampling.NEAREST).save(
            folder / "data" / "masks" / f"{number:03}_mask.gif"
        )
    no_tracker(folder, device)


def no_tracker(folder: Path, device: str) -> None:
    """A module `wandb` that keeps nothing of what it is told: the real one is 20 MB, and switched off."""
    (folder / "wandb.py").write_text(
        "class _Quiet:\n"
        "    def __call__(self, *words, **named):\n        return self\n\n"
        "    def __getattr__(self, name):\n        return _Quiet()\n\n\n"
        "run = _Quiet()\ninit = log = Image = _Quiet()\n"
    )


def enwik8_untracked(folder: Path, device: str) -> None:
    bytes_of_enwik8(folder, device)
    no_tracker(folder, device)


def diffusion(folder: Path, device: str) -> None:
    """The README's script of denoising-diffusion-pytorch, and pictures. FID is off: it needs a download."""
    photographs(folder)
    size, dim, batch = {"cuda": (128, 64, 32), "cpu": (32, 16, 16)}[device]
    (folder / "train_diffusion.py").write_text(
        "from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet\n\n"
        "if __name__ == '__main__':\n"
        f"    model = Unet(dim={dim}, dim_mults=(1, 2, 4, 8), flash_attn={device == 'cuda'})\n"
        f"    diffusion = GaussianDiffusion(model, image_size={size}, timesteps=1000,\n"
        "                                  sampling_timesteps=250)\n"
        f"    trainer = Trainer(diffusion, 'pictures', train_batch_size={batch}, train_lr=8e-5,\n"
        "                      train_num_steps=700000, gradient_accumulate_every=2, ema_decay=0.995,\n"
        "                      amp=True, calculate_fid=False)\n"
        "    trainer.train()\n"
    )


def style(folder: Path, device: str) -> None:
    """Pictures in classes, one in the style to take over, and weights of VGG-16 that nobody trained."""
    classes_of_pictures(folder, device)
    os.link(folder / "pictures" / "000.jpg", folder / "style.jpg")
    weights(folder, "vgg16")


CHECKPOINTS = {
    "alexnet": "alexnet-owt-7be5be79.pth",
    "vgg16": "vgg16-397923af.pth",
    "resnet50": "resnet50-0676ba61.pth",
    "mobilenet_v2": "mobilenet_v2-b0353104.pth",
    "squeezenet1_1": "squeezenet1_1-b8a52dc0.pth",
}
"""By model of torchvision, the file of the weights that programs ask for."""


def weights(folder: Path, model: str) -> None:
    """A checkpoint of torchvision's where torch looks for it before it would download it."""
    import torch
    import torchvision

    there = folder / "torch_home" / "hub" / "checkpoints"
    there.mkdir(parents=True, exist_ok=True)
    torch.save(getattr(torchvision.models, model)().state_dict(), there / CHECKPOINTS[model])


def weights_of(model: str) -> Callable[[Path, str], None]:
    return lambda folder, device: weights(folder, model)


def digits_and_results(folder: Path, device: str) -> None:
    digits(folder, device)
    (folder / "results").mkdir(exist_ok=True)


def small_clip(folder: Path, device: str) -> None:
    """A model of open_clip's that is small enough for a CPU, beside those that it has."""
    known = folder / "open_clip" / "model_configs"
    small = {
        "embed_dim": 64,
        "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
    }
    (known / "small.json").write_text(json.dumps(small))
