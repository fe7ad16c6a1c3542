"""Whether a Python function's file is the user's or a library's, as docs/reference/trace.md ("Places") defines."""

from __future__ import annotations

import re
import sys
from functools import cache

FUNCTION = re.compile(r"(?P<file>.+?)(\(\d+\)|(?<=\.py)): ")
PACKAGES = re.compile(
    r"PIL|accelerate|aiohttp|albumentations|apex|bitsandbytes|click|colossalai|composer|cupy|cv2|dali"
    r"|datasets|deepspeed|detectron2|diffusers|dynotune|einops|evaluate|fairscale|fairseq|fastai|fbgemm_gpu"
    r"|flash_attn|fsspec|functorch|huggingface_hub|hydra|ignite|imageio|jax|joblib|keras|kornia|lightning"
    r"|lightning_fabric|lightning_utilities|lm_eval|matplotlib|megatron|mmcv|mmengine|monai|networkx|nltk"
    r"|numba|numpy|nvidia|omegaconf|onnx|onnxruntime|optimum|pandas|peft|polars|psutil|pyarrow|pydantic"
    r"|pytest|_pytest|pytorch_lightning|ray|requests|rich|safetensors|scipy|sentencepiece"
    r"|sentence_transformers|sglang|skimage|sklearn|spacy|starlette|sympy|tensorboard|tensordict|tensorflow"
    r"|tensorrt|tensorrt_llm|timm|tokenizers|torch|torch_geometric|torch_tensorrt|torchao|torchaudio"
    r"|torchdata|torchmetrics|torchrec|torchtext|torchtune|torchvision|tqdm|transformer_engine|transformers"
    r"|triton|trl|typer|typing_extensions|ultralytics|unsloth|urllib3|uvicorn|vllm|wandb|webdataset|xformers"
    r"|yaml"
)
"""Names of installed packages, as the first folder of a file's path. torch's profiler removes the entries of
`sys.path` from the paths of files, so an installed package's path begins with its name."""

_INSTALLED = re.compile(
    r"(?:^|[/\\])(?:site-packages|dist-packages|lib(?:64)?[/\\]python3[^/\\]*|python3\d+\.zip|torch"
    r"|torchinductor_[^/\\]*)[/\\]|(?:^|[/\\])dynotune[/\\]agent[/\\]|^<frozen "
)


def is_users(function: str) -> bool:
    """Return whether the recorded name is of a user's own Python function."""
    file = _file(function)
    return bool(file) and not is_of_library(file)


def has_file(function: str) -> bool:
    """Return whether the recorded name is of a Python function in a file, of the user or of a library."""
    return _file(function) != ""


@cache
def is_of_library(file: str) -> bool:
    """Return whether a file is an installed package's, the standard library's, our agent's or made by torch."""
    first = file.split("/")[0].removesuffix(".py")
    return bool(_INSTALLED.search(file) or PACKAGES.fullmatch(first)) or first in sys.stdlib_module_names


def _file(function: str) -> str:
    """Return a Python function's file; "" for built-in functions, `nn.Module: Linear_3`, code without a file."""
    match = FUNCTION.match(function)
    if match is None or (match["file"].startswith("<") and not match["file"].startswith("<ipython-input")):
        return ""
    return match["file"]
