"""What the name of a kernel tells: the kind of work it does, and whether it uses tensor cores."""

import re
import tomllib
from functools import cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from dynotune.schema.trace_summary import PRODUCTS
from dynotune.trace.timeline import UNKNOWN

_DATA = tomllib.loads(files(__package__).joinpath("kernel_names.toml").read_text(encoding="utf-8"))
CLASSES: tuple[str, ...] = (*PRODUCTS, *_DATA["classes"])
"""What a kernel does. Defined one by one in docs/reference/trace.md."""
_PATTERNS = {name: re.compile(pattern) for name, pattern in _DATA["patterns"].items()}
_COMPILED = tuple((CLASSES.index(name), re.compile(pattern)) for name, pattern in _DATA["rules"])
_OTHER = CLASSES.index("other")
_BRACKETS = re.compile(r"[()]")
# What templates of CUTLASS reach, and more. Some patterns take time in the square of the length.
LONGEST_NAME = 8192


def classify(names: list[str]) -> NDArray[np.int8]:
    """Return the class of each kernel name, as index into `CLASSES`; "other" if no rule knows the name."""
    return np.fromiter((class_of(name) for name in names), dtype=np.int8, count=len(names))


def uses_tensor_cores(names: list[str]) -> NDArray[np.int8]:
    """Tell whether each name tells of tensor cores: 1 yes, 0 no, UNKNOWN if it does not tell."""
    return np.fromiter((tensor_cores_of(name) for name in names), dtype=np.int8, count=len(names))


def without_arguments(name: str) -> str:
    """Return the name without its argument list, which repeats the template's arguments."""
    if not name.endswith(")"):
        return name
    depth = 0
    for bracket in reversed(list(_BRACKETS.finditer(name))):
        depth += 1 if bracket.group() == ")" else -1
        if depth == 0:
            return name[: bracket.start()] or name
    return name


# Names come again for each rank and each fact. The trace holds them all, so that a bound would save nothing; and once
# a trace has more names than fit, each of them would be judged anew every time.
@cache
def class_of(name: str) -> int:
    name = without_arguments(name.lower()[:LONGEST_NAME])
    return next((index for index, pattern in _COMPILED if pattern.search(name)), _OTHER)


@cache
def tensor_cores_of(name: str) -> int:
    """Tell whether the kernel's name tells of tensor cores: 1 yes, 0 no, UNKNOWN if it does not tell."""
    name = without_arguments(name.lower()[:LONGEST_NAME])
    if _PATTERNS["beside_product"].search(name):
        return UNKNOWN
    if _PATTERNS["tensor_cores"].search(name):
        return 1
    return 0 if _PATTERNS["no_tensor_cores"].search(name) else UNKNOWN


def is_fp32_matmul(name: str) -> bool:
    """Tell whether it says that it multiplies matrices of float32 without tensor cores."""
    return bool(_PATTERNS["fp32_matmul"].search(name))


def is_of_half(name: str) -> bool:
    """Tell whether its name tells of half types."""
    return bool(_PATTERNS["half"].search(name))


def is_slow_product(name: str) -> bool:
    """Tell whether a kernel of this name multiplies matrices without tensor cores, or loads by one or two elements."""
    if _PATTERNS["no_matrices"].search(name):
        return False
    return tensor_cores_of(name) == 0 or is_misaligned(name)


def is_misaligned(name: str) -> bool:
    """Tell whether tensor cores wait for it: without them, kernels load single elements of whatever sizes."""
    return tensor_cores_of(name) == 1 and bool(_PATTERNS["misaligned"].search(name))
