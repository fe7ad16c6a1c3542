"""Types that several modules name in annotations. This module is imported for type checking only.

At run time no annotation is evaluated, so that the agent imports no module for types alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from os import PathLike
from types import CodeType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")
Event = Callable[[dict[str, Any]], None]
Log = Callable[[str, Exception], None]
# A planned setting and its read-back, as in `schema.task` and `schema.run`.
Planned = dict[str, Any]
Answer = dict[str, Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Call = Callable[..., Any]
# Calls an outermost module; and the context of such a call with the function that finishes its output.
Around = Callable[[Call, Any, Args, Kwargs], Any]
Surroundings = tuple[AbstractContextManager[Any], Callable[[Any], Any]]
# Makes the cover of a module's class from its call, the usual cover, `is_compiling`, busy threads and a log.
Special = Callable[[Call, Call, Callable[[], bool], set[int], Log], Call]
# Class of the loader, identity of its data, batch size, class of its sampler, whether gradients were on.
Key = tuple[type, int, Any, type, bool]
# Name of a variable.
Name = str | bytes | PathLike[str] | PathLike[bytes]
# Number of steps after which to continue.
Stops = Generator[int, None, Any]
# A sampled frame: code, line, globals of its module, instruction.
Taken = tuple[CodeType, int, dict[str, Any], int]
