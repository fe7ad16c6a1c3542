"""Whose a Python file is: the user's, or a library's. Defined in docs/reference/trace.md, "Places"."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

PACKAGES = re.compile(
    r"PIL|accelerate|aiohttp|albumentations|apex|bitsandbytes|click|colossalai|composer|cupy|cv2|dali|datasets|deepspeed"
    r"|detectron2|diffusers|dynotune|einops|evaluate|fairscale|fairseq|fastai|fbgemm_gpu|flash_attn|fsspec|functorch"
    r"|huggingface_hub|hydra|ignite|imageio|jax|joblib|keras|kornia|lightning|lightning_fabric|lightning_utilities"
    r"|lm_eval|matplotlib|megatron|mmcv|mmengine|monai|networkx|nltk|numba|numpy|nvidia|omegaconf|onnx|onnxruntime"
    r"|optimum|pandas|peft|polars|psutil|pyarrow|pydantic|pytest|_pytest|pytorch_lightning|ray|requests|rich|safetensors"
    r"|scipy|sentencepiece|sentence_transformers|sglang|skimage|sklearn|spacy|starlette|sympy|tensorboard|tensordict"
    r"|tensorflow|tensorrt|tensorrt_llm|timm|tokenizers|torch|torch_geometric|torch_tensorrt|torchao|torchaudio|torchdata"
    r"|torchmetrics|torchrec|torchtext|torchtune|torchvision|tqdm|transformer_engine|transformers|triton|trl|typer"
    r"|typing_extensions|ultralytics|unsloth|urllib3|uvicorn|vllm|wandb|webdataset|xformers|yaml"
)
"""Packages by the first part of a file's path. torch's profiler cuts what `sys.path` holds off the paths of files: of
an installed package only its own name is left."""

_INSTALLED = re.compile(
    r"(?:^|[/\\])(?:site-packages|dist-packages|lib(?:64)?[/\\]python3[^/\\]*|python3\d+\.zip|torch|torchinductor_[^/\\]*)"
    r"[/\\]|(?:^|[/\\])dynotune[/\\]agent[/\\]|^<frozen "
)


@lru_cache(maxsize=1 << 16)
def is_of_library(file: str) -> bool:
    """Whether the file lies in an installed package, the standard library, torch or our agent, or torch made it."""
    first = file.split("/")[0].removesuffix(".py")
    return bool(_INSTALLED.search(file) or PACKAGES.fullmatch(first)) or first in sys.stdlib_module_names
