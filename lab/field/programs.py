"""The published programs, by repository, with the words that they are started by and an informed hand's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from lab.field import reads
from lab.field.published import BF16, DEVICES, PINNED, TF32, Preparation, Published
from lab.yolo import OFFLINE

NO_NETWORK = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_EVALUATE_OFFLINE": "1",
    "HF_HOME": "cache",
}


def published(sources: Path, device: str) -> list[Published]:
    """Those of PROGRAMS that run on a device, from the repositories in a folder."""
    found = [replace(one, sources=sources.absolute(), device=device) for one in PROGRAMS if device in one.on]
    return [replace(program, prepare=Preparation(program)) for program in found]


CORES = len(os.sched_getaffinity(0))
_COMPILE = "compile.mode=default"
_WORKERS, _FUSED = f"loader.num_workers={CORES}", "optimizer.fused=true"
_CHANNELS_LAST = "layout.channels_last=true"
_SMALL_GPT = (
    "--device=cpu --compile=False --eval_iters=1 --block_size=64 --batch_size=12 --n_layer=4 "
    "--n_head=4 --n_embd=128"
)
_VISION_NEEDS = ("torch", "torchvision", "PIL")
_YOLO_NEEDS = ("torch", "torchvision", "cv2", "ultralytics")

_STRESS_S = "100000"
_TRAINS = (BF16, _COMPILE, _FUSED)


def _torchbench(
    model: str, test: str, hand: tuple[str, ...], *, cpu: str = "", on: tuple[str, ...] = DEVICES,
    needs: tuple[str, ...] = ("torchvision",), weights: bool = False,
) -> Published:  # fmt: skip
    """A model of TorchBench, in the loop of its own `run.py`. Its losses are not printed."""
    return Published(
        name=f"torchbench-{model}-{test}",
        words=("run.py", model, "-t", test, "--metrics", "none", "--stress", _STRESS_S),
        needs=("torch", "numpy", "psutil", "tabulate", *needs),
        by_device={"cuda": "-d cuda", "cpu": f"-d cpu {cpu}"},
        repository="pytorch/benchmark",
        make=reads.weights_of(model) if weights else None,
        env={"TORCH_HOME": "torch_home"} if weights else {},
        on=on,
        hand_settings=hand,
    )


def _of_torchbench() -> list[Published]:
    """Models that need no download, or whose weights of that shape can be made up."""
    convolves = (TF32, *_TRAINS, _CHANNELS_LAST)
    rounds = (TF32, *_TRAINS)
    return [
        _torchbench("BERT_pytorch", "train", rounds, cpu="--bs 1"),
        _torchbench("hf_Bert", "train", rounds, on=("cuda",), needs=("transformers",)),
        _torchbench("hf_GPT2", "train", rounds, on=("cuda",), needs=("transformers",)),
        _torchbench("hf_Bert", "eval", (TF32, BF16, _COMPILE), on=("cuda",), needs=("transformers",)),
        _torchbench("resnet50", "train", convolves, on=("cuda",), weights=True),
        _torchbench("resnet50", "eval", (TF32, BF16, _COMPILE, _CHANNELS_LAST), cpu="--bs 1", weights=True),
        _torchbench("vgg16", "train", convolves, on=("cuda",), weights=True),
        _torchbench("alexnet", "train", convolves, cpu="--bs 8", weights=True),
        _torchbench("mobilenet_v2", "train", convolves, cpu="--bs 2", weights=True),
        _torchbench("squeezenet1_1", "train", convolves, cpu="--bs 4", weights=True),
        _torchbench("phlippe_resnet", "train", convolves, cpu="--bs 8"),
        _torchbench("functorch_dp_cifar10", "train", (TF32, _FUSED), cpu="--bs 4"),
        _torchbench("pytorch_unet", "train", (TF32, _COMPILE, _CHANNELS_LAST), on=("cuda",)),
        _torchbench("nvidia_deeprecommender", "train", rounds, on=("cuda",)),
        _torchbench("lennard_jones", "train", (TF32, _COMPILE, _FUSED)),
        _torchbench("LearningToPaint", "train", (TF32, _FUSED), cpu="--bs 4", needs=("torchvision", "cv2")),
        _torchbench("basic_gnn_gcn", "train", (TF32, _FUSED), needs=("torch_geometric",)),
        _torchbench("dcgan", "train", (TF32, _COMPILE, _FUSED, _CHANNELS_LAST), cpu="--bs 4"),
    ]


PROGRAMS = [
    Published(
        name="nanogpt",
        words=("train.py", "config/train_shakespeare_char.py"),
        by_device={"cpu": _SMALL_GPT},
        repository="karpathy/nanoGPT",
        make=reads.characters,
        # It has TF32, bfloat16, pinned batches and a fused optimizer, and it compiles: there is nothing to
        # add.
    ),
    Published(
        name="nanogpt-eager",
        words=("train.py", "config/train_shakespeare_char.py", "--compile=False"),
        by_device={"cpu": _SMALL_GPT},
        repository="karpathy/nanoGPT",
        make=reads.characters,
        hand_words="--compile=True",
    ),
    Published(
        name="imagenet",
        words=("main.py", "--dummy", "-a", "resnet50"),
        needs=_VISION_NEEDS,
        by_device={"cpu": "-a resnet18 -b 4 -j 1 --no-accel"},
        repository="pytorch/examples",
        part="imagenet",
        hand_settings=(TF32, BF16, _COMPILE, _WORKERS, PINNED, _FUSED, _CHANNELS_LAST),
        run_s={"cuda": 20.0, "cpu": 15.0},
    ),
    Published(
        # No loader and no optimizer are in it: it slices one tensor and steps by hand.
        name="word-language-model",
        words=("main.py",),
        by_device={"cuda": "--accel", "cpu": "--emsize 64 --nhid 64"},
        repository="pytorch/examples",
        part="word_language_model",
        make=reads.corpus,
        hand_settings=(TF32, BF16, _COMPILE),
    ),
    Published(
        # BCELoss refuses to run under autocast on a GPU, so who knows that leaves autocast out. 25 epochs of
        # made-up pictures last half a minute: here it makes more.
        name="dcgan",
        words=("main.py", "--dataset", "fake", "--outf", "out", "--niter", "1000"),
        needs=_VISION_NEEDS,
        by_device={"cuda": "--accel", "cpu": "--ngf 8 --ndf 8 --batchSize 16"},
        repository="pytorch/examples",
        part="dcgan",
        hand_settings=(TF32, _COMPILE, _WORKERS, PINNED, _FUSED, _CHANNELS_LAST),
    ),
    Published(
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
        make=reads.classes_of_pictures,
        hand_words=f"--amp --amp-dtype bfloat16 --torchcompile --channels-last -j {CORES} --pin-mem",
        env=NO_NETWORK,
        run_s={"cuda": 18.0, "cpu": 12.0},
    ),
    Published(
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
        make=reads.text_and_tokenizer,
        hand_words=(
            f"--bf16 --tf32 True --torch_compile --dataloader_num_workers {CORES} --optim adamw_torch_fused"
        ),
        env=NO_NETWORK,
        run_s={"cuda": 25.0, "cpu": 25.0},
    ),
    Published(
        name="lightning",
        words=("imagenet.py", "fit", "--model.data_path", "classes", "--model.arch", "resnet50"),
        needs=(*_VISION_NEEDS, "lightning", "jsonargparse", "docstring_parser"),
        by_device={
            "cpu": "--model.arch resnet18 --model.batch_size 2 --model.workers 1 --trainer.accelerator cpu"
        },
        repository="Lightning-AI/pytorch-lightning",
        part="examples/pytorch/domain_templates",
        make=reads.classes_of_pictures,
        hand_words=f"--trainer.precision bf16-mixed --model.workers {CORES}",
        hand_settings=(TF32, _COMPILE, _FUSED, _CHANNELS_LAST),
        run_s={"cuda": 25.0, "cpu": 25.0},
    ),
    Published(
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
        make=reads.detection,
        hand_words=f"compile=True cache=ram workers={CORES}",
        env=OFFLINE,
        run_s={"cuda": 22.0, "cpu": 20.0},
    ),
    Published(
        name="yolo-predict",
        words=("yolo", "predict", "model=yolo11n.yaml", "source=many", "verbose=False"),
        needs=_YOLO_NEEDS,
        script=False,
        by_device={"cuda": "device=0", "cpu": "device=cpu imgsz=96"},
        make=reads.detection,
        hand_words="half=True compile=True batch=32",
        env=OFFLINE,
        run_s={"cuda": 14.0, "cpu": 15.0},
    ),
    Published(
        name="mingpt",
        words=("projects/chargpt/chargpt.py",),
        by_device={"cpu": "--model.model_type=gpt-nano --trainer.batch_size=16"},
        repository="karpathy/minGPT",
        make=reads.play,
        path=(".",),
        prints="train loss ",
        hand_settings=(TF32, BF16, _COMPILE, _WORKERS, _FUSED),
    ),
    Published(
        name="mingpt-adder",
        words=("projects/adder/adder.py", "--trainer.max_iters=10000000"),
        by_device={"cpu": "--trainer.batch_size=16"},
        repository="karpathy/minGPT",
        path=(".",),
        prints="train loss ",
        hand_settings=(TF32, BF16, _COMPILE, _FUSED),
    ),
    Published(
        # With one GPU it says that it needs two, and ends.
        name="mingpt-ddp",
        words=(
            "torchrun",
            "--standalone",
            "--nproc_per_node=2",
            "main.py",
            "data_config.path=input.txt",
            "data_config.truncate=1.0",
            "trainer_config.max_epochs=1000",
        ),
        script=False,
        needs=("torch", "hydra", "omegaconf", "fsspec"),
        repository="pytorch/examples",
        part="distributed/minGPT-ddp/mingpt",
        make=reads.play,
        on=("cuda",),
        gpus=2,
        prints="Train Loss ",
        hand_settings=(TF32, _COMPILE, _WORKERS, _FUSED, "ddp.gradient_as_bucket_view=true"),
    ),
    Published(
        name="makemore",
        words=("makemore.py",),
        needs=("torch", "tensorboard"),
        by_device={"cuda": "--device cuda"},
        repository="karpathy/makemore",
        prints="loss ",
        hand_settings=(TF32, _COMPILE, _FUSED),
    ),
    Published(
        name="gpt-lecture",
        words=("gpt.py",),
        needs=("torch",),
        repository="karpathy/ng-video-lecture",
        make=reads.play,
        on=("cuda",),
        prints="train loss ",
        hand_settings=(TF32, BF16, _COMPILE, _FUSED),
    ),
    Published(
        name="open-clip",
        words=(
            "-m",
            "open_clip_train.main",
            "--dataset-type",
            "synthetic",
            "--train-num-samples",
            "1000000",
            "--model",
            "ViT-B-32",
            "--batch-size",
            "256",
            "--precision",
            "amp",
            "--workers",
            "4",
            "--epochs",
            "10",
            "--log-every-n-steps",
            "10",
        ),
        needs=(
            *_VISION_NEEDS,
            "timm",
            "ftfy",
            "regex",
            "huggingface_hub",
            "safetensors",
            "pandas",
            "braceexpand",
            "webdataset",
        ),
        by_device={"cpu": "--device cpu --precision fp32 --model small --batch-size 8 --workers 1"},
        repository="mlfoundations/open_clip",
        part="src",
        make=reads.small_clip,
        prints="Loss: ",
        hand_words="--precision amp_bf16 --torchcompile",
        hand_settings=(TF32, _WORKERS, _FUSED),
    ),
    Published(
        # It begins a new net and optimizer every ten epochs, 25 times, and then ends.
        name="airbench94",
        words=("legacy/airbench94.py",),
        needs=("torch", "torchvision"),
        repository="KellerJordan/cifar10-airbench",
        make=reads.tensors_of_cifar,
        on=("cuda",),
        hand_settings=(_COMPILE, _FUSED),
    ),
    Published(
        name="airbench94-compiled",
        words=("legacy/airbench94_compiled.py",),
        needs=("torch", "torchvision"),
        repository="KellerJordan/cifar10-airbench",
        make=reads.tensors_of_cifar,
        on=("cuda",),
        run_s={"cuda": 60.0, "cpu": 60.0},
        hand_settings=(_FUSED,),
    ),
    Published(
        name="airbench94-muon",
        words=("airbench94_muon.py",),
        needs=("torch", "torchvision"),
        repository="KellerJordan/cifar10-airbench",
        make=reads.tensors_of_cifar,
        on=("cuda",),
        run_s={"cuda": 60.0, "cpu": 60.0},
        hand_settings=(TF32,),
    ),
    Published(
        name="x-transformers-enwik8",
        words=("train_enwik8.py",),
        needs=("torch", "einops", "einx", "loguru", "torch_einops_utils", "accelerate", "fire", "tqdm"),
        by_device={"cpu": "--batch_size=1 --seq_len=64 --generate_length=8 --cpu=True"},
        repository="lucidrains/x-transformers",
        make=reads.enwik8_untracked,
        prints="training loss: ",
        hand_settings=(TF32, BF16, _COMPILE, _FUSED),
    ),
    Published(
        name="x-transformers-copy",
        words=("train_copy.py",),
        needs=("torch", "einops", "einx", "loguru", "torch_einops_utils", "tqdm"),
        repository="lucidrains/x-transformers",
        prints=r"^\d+: ",
        hand_settings=(TF32, _COMPILE, _FUSED),
    ),
    Published(
        name="denoising-diffusion",
        words=("train_diffusion.py",),
        needs=(*_VISION_NEEDS, "einops", "ema_pytorch", "accelerate", "pytorch_fid", "scipy", "tqdm"),
        repository="lucidrains/denoising-diffusion-pytorch",
        make=reads.diffusion,
        run_s={"cuda": 20.0, "cpu": 20.0},
        prints="loss: ",
        hand_settings=(TF32, _COMPILE, _FUSED, _CHANNELS_LAST, "cudnn.benchmark=true"),
    ),
    Published(
        name="unet",
        words=("train.py", "--epochs", "1000"),
        needs=(*_VISION_NEEDS, "tqdm"),
        by_device={"cpu": "--scale 0.25"},
        repository="milesial/Pytorch-UNet",
        make=reads.pictures_and_masks,
        prints=r"loss \(batch\)=",
        hand_words="--amp",
        hand_settings=(TF32, _COMPILE, _CHANNELS_LAST, "cudnn.benchmark=true"),
    ),
    Published(
        name="mnist",
        words=("main.py", "--epochs", "1000"),
        needs=_VISION_NEEDS,
        repository="pytorch/examples",
        part="mnist",
        make=reads.digits,
        prints="Loss: ",
        hand_settings=(TF32, _COMPILE, _WORKERS, PINNED),
    ),
    Published(
        name="mnist-rnn",
        words=("main.py", "--epochs", "1000"),
        needs=_VISION_NEEDS,
        by_device={"cuda": "--accel", "cpu": "--batch-size 16"},
        repository="pytorch/examples",
        part="mnist_rnn",
        make=reads.digits,
        prints="Loss: ",
        hand_settings=(TF32, _WORKERS, PINNED),
    ),
    Published(
        name="vae",
        words=("main.py", "--epochs", "1000"),
        needs=_VISION_NEEDS,
        repository="pytorch/examples",
        part="vae",
        make=reads.digits_and_results,
        prints="Loss: ",
        hand_settings=(TF32, _COMPILE, _WORKERS, PINNED, _FUSED),
    ),
    Published(
        name="siamese",
        words=("main.py", "--epochs", "1000"),
        needs=_VISION_NEEDS,
        by_device={"cpu": "--batch-size 4 --no-accel"},
        repository="pytorch/examples",
        part="siamese_network",
        make=reads.digits,
        prints="Loss: ",
        hand_settings=(TF32, _COMPILE, _WORKERS, PINNED, _CHANNELS_LAST),
    ),
    Published(
        name="super-resolution",
        words=("main.py", "--upscale_factor", "3", "--nEpochs", "1000"),
        needs=(*_VISION_NEEDS, "six"),
        by_device={"cuda": "--accel", "cpu": "--batchSize 1 --threads 1"},
        repository="pytorch/examples",
        part="super_resolution",
        make=reads.pictures_of_bsds,
        prints="Loss: ",
        hand_settings=(TF32, BF16, _WORKERS, PINNED, _FUSED, "loader.persistent_workers=true"),
    ),
    Published(
        name="gat",
        words=("main.py", "--epochs", "1000000"),
        by_device={"cpu": "--hidden-dim 8 --num-heads 1"},
        needs=("torch", "numpy", "requests"),
        repository="pytorch/examples",
        part="gat",
        make=reads.citations,
        prints="loss_train: ",
        hand_settings=(TF32, BF16, _COMPILE, _FUSED),
    ),
    Published(
        name="fast-neural-style",
        words=(
            "neural_style/neural_style.py",
            "train",
            "--dataset",
            "classes/train",
            "--style-image",
            "style.jpg",
            "--save-model-dir",
            "out",
            "--epochs",
            "1000",
        ),
        needs=_VISION_NEEDS,
        by_device={"cuda": "--accel", "cpu": "--batch-size 1 --image-size 64"},
        repository="pytorch/examples",
        part="fast_neural_style",
        make=reads.style,
        env={"TORCH_HOME": "torch_home"},
        prints="total: ",
        hand_settings=(TF32, BF16, _COMPILE, _WORKERS, PINNED, _FUSED, _CHANNELS_LAST),
    ),
    *_of_torchbench(),
]
