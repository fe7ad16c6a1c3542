"""Programs of others, as published: where they are from, what they read, and what an informed hand would
write.

Nothing of a program is changed. Its files are copied into a folder of its own, where what it reads is made up
beside them, and it is started there by the words that its own documentation gives.

The informed hand is what somebody who knows the usual advice would write for this very program: by its own
options where it has them, else by what three lines added to it would do, which is said here in settings of
dynotune.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lab.tuning.programs import Arms, Program, photographs
from lab.yolo import OFFLINE
from lab.yolo import photographs as yolo_photographs

CORES = len(os.sched_getaffinity(0))
TUNE_S = 180.0
HAND = "hand"
"""The placeholder of the words that one arm has and the other has not."""
NUM_LINKED = {"cuda": 25_600, "cpu": 640}
NO_NETWORK = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HOME": "cache",
}


@dataclass(frozen=True, kw_only=True)
class Public(Program):
    """A program of others.

    Args:
        words: after the interpreter, on any device; with `script` False, the whole command.
        by_device: more words, by device: on a CPU it has to be small.
        repository: on GitHub; "" where the program is an installed package.
        part: folder of the repository that is copied, and that the program is started in.
        make: what it reads, into that folder, for a device.
        hand_words: more words by the informed hand. An option that is given twice counts the second time.
        hand_settings: what it has no words for.
        sources: folder with the repositories.
        device: that it is prepared for.
    """

    by_device: Mapping[str, str] = field(default_factory=dict)
    script: bool = True
    repository: str = ""
    part: str = "."
    make: str = ""
    hand_words: str = ""
    hand_settings: tuple[str, ...] = ()
    sources: Path = Path()
    device: str = "cpu"

    @property
    def source(self) -> Path:
        return self.sources / self.repository.rpartition("/")[2] / self.part

    def missing(self) -> list[str]:
        lacks_source = bool(self.repository) and not (self.source / self.words[0]).is_file()
        return [*super().missing(), *([self.repository] if lacks_source else [])]

    def command(self, device: str) -> list[str]:
        words = [*self.words, *shlex.split(self.by_device.get(device, ""))]
        return [sys.executable, *words] if self.script else [_beside_python(words[0]), *words[1:]]

    @property
    def hand(self) -> str:
        return " ".join([*self._settings, self.hand_words]).strip()

    @property
    def _settings(self) -> list[str]:
        """Pinned memory is for a GPU, and refused without one."""
        return [one for one in self.hand_settings if self.device == "cuda" or one != _PINNED]

    def arms(self, words: str, device: str) -> Arms:
        """With a shell where words differ: a placeholder is one word, and a hand may have several."""
        if not self.hand_words:
            return Arms(self.command(device), [], self._settings)
        line = f"exec {shlex.join(self.command(device))} {{{HAND}}}"
        return Arms(["sh", "-c", line], [f"arg.{HAND}="], [*self._settings, f"arg.{HAND}={self.hand_words}"])


def _beside_python(name: str) -> str:
    """A console script of this interpreter's environment."""
    file = Path(sys.executable).with_name(name)
    return str(file) if file.is_file() else shutil.which(name) or name


def public(sources: Path, device: str) -> list[Public]:
    """Those of PROGRAMS, from the repositories in a folder, for a device."""
    found = [replace(program, sources=sources.absolute(), device=device) for program in PROGRAMS]
    return [replace(program, prepare=_Preparation(program)) for program in found]


@dataclass(frozen=True)
class _Preparation:
    """Fills the folder that a program is started in."""

    program: Public

    def __call__(self, folder: Path) -> None:
        if self.program.repository:
            ignored = shutil.ignore_patterns(".git", "__pycache__")
            shutil.copytree(self.program.source, folder, ignore=ignored, dirs_exist_ok=True)
        if self.program.make:
            _MAKERS[self.program.make](folder, self.program.device)


# What they read


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


_MAKERS = {
    maker.__name__: maker
    for maker in (characters, corpus, text_and_tokenizer, classes_of_pictures, detection)
}

# The programs

_TF32, _BF16, _COMPILE = "matmul.fp32_precision=high", "precision.autocast=bf16", "compile.mode=default"
_WORKERS, _PINNED, _FUSED = f"loader.num_workers={CORES}", "loader.pin_memory=true", "optimizer.fused=true"
_CHANNELS_LAST = "layout.channels_last=true"
_SMALL_GPT = (
    "--device=cpu --compile=False --eval_iters=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128"
)
_TORCH_NEEDS = ("torch", "numpy")
_VISION_NEEDS = ("torch", "torchvision", "PIL")
_YOLO_NEEDS = ("torch", "torchvision", "cv2", "ultralytics")
_RUN_S = {"cuda": 12.0, "cpu": 12.0}
_TUNE_S = {"cuda": TUNE_S, "cpu": TUNE_S}

PROGRAMS = [
    Public(
        name="nanogpt",
        words=("train.py", "config/train_shakespeare_char.py"),
        needs=_TORCH_NEEDS,
        by_device={"cpu": _SMALL_GPT},
        repository="karpathy/nanoGPT",
        make="characters",
        run_s=_RUN_S,
        tune_s=_TUNE_S,
        # It has TF32, bfloat16, pinned batches and a fused optimizer, and it compiles: there is nothing to
        # add.
    ),
    Public(
        name="nanogpt-eager",
        words=("train.py", "config/train_shakespeare_char.py", "--compile=False"),
        needs=_TORCH_NEEDS,
        by_device={"cpu": _SMALL_GPT},
        repository="karpathy/nanoGPT",
        make="characters",
        hand_words="--compile=True",
        run_s=_RUN_S,
        tune_s=_TUNE_S,
    ),
    Public(
        name="imagenet",
        words=("main.py", "--dummy", "-a", "resnet50"),
        needs=_VISION_NEEDS,
        by_device={"cpu": "-a resnet18 -b 4 -j 1 --no-accel"},
        repository="pytorch/examples",
        part="imagenet",
        hand_settings=(_TF32, _BF16, _COMPILE, _WORKERS, _PINNED, _FUSED, _CHANNELS_LAST),
        run_s={"cuda": 20.0, "cpu": 15.0},
        tune_s=_TUNE_S,
    ),
    Public(
        # No loader and no optimizer are in it: it slices one tensor and steps by hand.
        name="word-language-model",
        words=("main.py",),
        needs=_TORCH_NEEDS,
        by_device={"cuda": "--accel", "cpu": "--emsize 64 --nhid 64"},
        repository="pytorch/examples",
        part="word_language_model",
        make="corpus",
        hand_settings=(_TF32, _BF16, _COMPILE),
        run_s=_RUN_S,
        tune_s=_TUNE_S,
    ),
    Public(
        # BCELoss refuses to run under autocast on a GPU, so who knows that leaves autocast out. 25 epochs of
        # made-up pictures last half a minute: here it makes more.
        name="dcgan",
        words=("main.py", "--dataset", "fake", "--outf", "out", "--niter", "1000"),
        needs=_VISION_NEEDS,
        by_device={"cuda": "--accel", "cpu": "--ngf 8 --ndf 8 --batchSize 16"},
        repository="pytorch/examples",
        part="dcgan",
        hand_settings=(_TF32, _COMPILE, _WORKERS, _PINNED, _FUSED, _CHANNELS_LAST),
        run_s=_RUN_S,
        tune_s=_TUNE_S,
    ),
    Public(
        name="timm",
        words=(
            "train.py",
            "--data-dir",
            "classes",
            "--val-split",
            "val",
            "--model",
            "resnet50",
            "--num-classes",
            "10",
        ),
        needs=(*_VISION_NEEDS, "yaml", "huggingface_hub", "safetensors"),
        by_device={"cpu": "--device cpu --model resnet18 --img-size 64 -b 8 -j 1"},
        repository="huggingface/pytorch-image-models",
        make="classes_of_pictures",
        hand_words=f"--amp --amp-dtype bfloat16 --torchcompile --channels-last -j {CORES} --pin-mem",
        env=NO_NETWORK,
        run_s={"cuda": 18.0, "cpu": 12.0},
        tune_s=_TUNE_S,
    ),
    Public(
        name="transformers",
        words=(
            "run_clm.py",
            "--model_type",
            "gpt2",
            "--tokenizer_name",
            "tokenizer",
            "--train_file",
            "text.txt",
            "--do_train",
            "--output_dir",
            "out",
            "--save_strategy",
            "no",
            "--report_to",
            "none",
        ),
        needs=("torch", "transformers", "accelerate", "datasets", "evaluate"),
        by_device={
            "cpu": "--use_cpu --config_overrides n_layer=2,n_embd=64,n_head=2 --block_size 64 "
            "--per_device_train_batch_size 2"
        },
        repository="huggingface/transformers",
        part="examples/pytorch/language-modeling",
        make="text_and_tokenizer",
        hand_words=(
            f"--bf16 --tf32 True --torch_compile --dataloader_num_workers {CORES} --optim adamw_torch_fused"
        ),
        env=NO_NETWORK,
        run_s={"cuda": 25.0, "cpu": 25.0},
        tune_s=_TUNE_S,
    ),
    Public(
        name="lightning",
        words=("imagenet.py", "fit", "--model.data_path", "classes", "--model.arch", "resnet50"),
        needs=(*_VISION_NEEDS, "lightning", "jsonargparse", "docstring_parser"),
        by_device={
            "cpu": "--model.arch resnet18 --model.batch_size 2 --model.workers 1 --trainer.accelerator cpu"
        },
        repository="Lightning-AI/pytorch-lightning",
        part="examples/pytorch/domain_templates",
        make="classes_of_pictures",
        hand_words=f"--trainer.precision bf16-mixed --model.workers {CORES}",
        hand_settings=(_TF32, _COMPILE, _FUSED, _CHANNELS_LAST),
        run_s={"cuda": 25.0, "cpu": 25.0},
        tune_s=_TUNE_S,
    ),
    Public(
        # It has half precision and eight workers of its own accord.
        name="yolo-train",
        words=(
            "yolo",
            "train",
            "model=yolo11n.yaml",
            "data=data.yaml",
            "epochs=500",
            "plots=False",
            "val=False",
            "save=False",
        ),
        needs=_YOLO_NEEDS,
        script=False,
        by_device={"cuda": "device=0", "cpu": "device=cpu imgsz=96 batch=8 amp=False"},
        make="detection",
        hand_words=f"compile=True cache=ram workers={CORES}",
        env=OFFLINE,
        run_s={"cuda": 22.0, "cpu": 20.0},
        tune_s=_TUNE_S,
    ),
    Public(
        name="yolo-predict",
        words=("yolo", "predict", "model=yolo11n.yaml", "source=many", "verbose=False"),
        needs=_YOLO_NEEDS,
        script=False,
        by_device={"cuda": "device=0", "cpu": "device=cpu imgsz=96"},
        make="detection",
        hand_words="half=True compile=True batch=32",
        env=OFFLINE,
        run_s={"cuda": 14.0, "cpu": 15.0},
        tune_s=_TUNE_S,
    ),
]
