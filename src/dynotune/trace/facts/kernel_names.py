"""Classify kernels by name: the kind of work, and whether the kernel uses tensor cores."""

import re
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from dynotune.schema.data_file import table
from dynotune.schema.trace_summary import PRODUCTS
from dynotune.trace.timeline import UNKNOWN


class _Patterns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Patterns that tell what a kernel of some class does, as kernel_names.toml explains them."""

    beside_product: str
    tensor_cores: str
    no_tensor_cores: str
    fp32_matmul: str
    half: str
    misaligned: str
    no_matrices: str


class _KernelNames(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file kernel_names.toml. `rules`: pairs of class and pattern."""

    classes: tuple[str, ...]
    rules: tuple[tuple[str, str], ...]
    patterns: _Patterns


_TABLE = table(__package__, "kernel_names.toml", _KernelNames)
CLASSES: tuple[str, ...] = (*PRODUCTS, *_TABLE.classes)
"""Kinds of kernels' work. Each is defined in docs/reference/trace.md."""
COMMUNICATION = CLASSES.index("communication")
_PATTERNS = {name: re.compile(pattern) for name, pattern in msgspec.structs.asdict(_TABLE.patterns).items()}
_COMPILED = tuple((CLASSES.index(name), re.compile(pattern)) for name, pattern in _TABLE.rules)
_OTHER = CLASSES.index("other")
_BRACKETS = re.compile(r"[()]")
# Longer than CUTLASS's template names. The limit exists since some patterns take time quadratic in the name's
# length.
LONGEST_NAME = 8192


def classify(names: list[str]) -> NDArray[np.int8]:
    """Return the class of each kernel name as an index into `CLASSES`; class "other" if no rule matches the
    name."""
    return np.fromiter((class_of(name) for name in names), dtype=np.int8, count=len(names))


def uses_tensor_cores(names: list[str]) -> NDArray[np.int8]:
    """Return whether kernels of each name use tensor cores: 1 yes, 0 no, UNKNOWN if the name does not show
    this."""
    return np.fromiter((tensor_cores_of(name) for name in names), dtype=np.int8, count=len(names))


def without_arguments(name: str) -> str:
    """Return the kernel name without its argument list, which only repeats the template's arguments."""
    if not name.endswith(")"):
        return name
    depth = 0
    for bracket in reversed(list(_BRACKETS.finditer(name))):
        depth += 1 if bracket.group() == ")" else -1
        if depth == 0:
            return name[: bracket.start()] or name
    return name


# The cache has no bound: names recur for each rank and each fact, and the trace keeps all names in memory
# anyway. With a bound, names that do not fit would be classified again every time.
@cache
def class_of(name: str) -> int:
    name = without_arguments(name.lower()[:LONGEST_NAME])
    return next((index for index, pattern in _COMPILED if pattern.search(name)), _OTHER)


@cache
def tensor_cores_of(name: str) -> int:
    """Return whether a kernel of this name uses tensor cores: 1 yes, 0 no, UNKNOWN if the name does not show
    this."""
    name = without_arguments(name.lower()[:LONGEST_NAME])
    if _PATTERNS["beside_product"].search(name):
        return UNKNOWN
    if _PATTERNS["tensor_cores"].search(name):
        return 1
    return 0 if _PATTERNS["no_tensor_cores"].search(name) else UNKNOWN


def is_fp32_matmul(name: str) -> bool:
    """Return whether a kernel of this name is a float32 matrix product without tensor cores."""
    return bool(_PATTERNS["fp32_matmul"].search(name))


def is_of_half(name: str) -> bool:
    """Return whether the kernel's name contains a half-precision type."""
    return bool(_PATTERNS["half"].search(name))


def is_slow_product(name: str) -> bool:
    """Return whether a kernel of this name multiplies matrices without tensor cores or with misaligned
    loads."""
    if _PATTERNS["no_matrices"].search(name):
        return False
    return tensor_cores_of(name) == 0 or is_misaligned(name)


def is_misaligned(name: str) -> bool:
    """Return whether misaligned loads delay the kernel's tensor cores; other kernels load single elements
    anyway."""
    return tensor_cores_of(name) == 1 and bool(_PATTERNS["misaligned"].search(name))
