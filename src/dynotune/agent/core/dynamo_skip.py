"""Keep torch.compile from starting at a frame of the agent; inside a traced graph, agent frames are still inlined."""

from __future__ import annotations

import sys
import types

from .annotations import Any, Iterator


def skip(eval_frame: Any) -> None:
    """Register the agent's code with `torch._dynamo.eval_frame` once; functions created later share this code."""
    for code in _codes():
        eval_frame.skip_code(code)


def _codes() -> Iterator[types.CodeType]:
    """Yield the code objects of all functions of this package, including nested functions."""
    package = __name__.rsplit(".", 2)[0]
    for name, module in list(sys.modules.items()):
        if name == package or name.startswith(package + "."):
            for value in list(vars(module).values()):
                yield from _code_of(value, name)


def _code_of(value: Any, module: str) -> Iterator[types.CodeType]:
    if getattr(value, "__module__", None) != module:
        return
    if isinstance(value, types.FunctionType):
        yield from _inside(value.__code__)
    elif isinstance(value, type):
        for part in vars(value).values():
            function = getattr(part, "__func__", getattr(part, "fget", part))
            if isinstance(function, types.FunctionType):
                yield from _inside(function.__code__)


def _inside(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inside(constant)
