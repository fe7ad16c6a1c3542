"""Shorten a kernel's name to the name that people use, for the terminal and for evidence."""

import re

# Patterns for template arguments, of torch's and NVIDIA's kernels, that name the operation; and for their wrappers.
_TELLING = re.compile(r"\b(?:cutlass_\w+\b(?!::)|\w+_kernel_cuda|CUDAFunctor_\w+|\w*[Ff]unctor|\w+Ops)\b")
_WRAPPERS = ("AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "UnaryFunctor")


def short_kernel_name(name: str) -> str:
    """Shorten a kernel's name: no return type, parameters or namespaces, and only distinctive template arguments.

    >>> short_kernel_name("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)")
    'vectorized_elementwise_kernel<FillFunctor>'
    """
    depth, kept = 0, []
    name = name[:2000]
    for character in name.replace("(anonymous namespace)::", ""):
        if character in "<(":
            depth += 1
        elif character in ">)":
            depth = max(0, depth - 1)
        elif not depth:
            kept.append(character)
    bare = "".join(kept).strip().removeprefix("void ").rpartition("::")[2].strip()
    tells = next((found for found in _TELLING.findall(name) if found not in (*_WRAPPERS, bare)), "")
    if tells.startswith("cutlass_"):
        bare = tells
    elif tells:
        bare = f"{bare}<{tells}>"
    return bare or name
