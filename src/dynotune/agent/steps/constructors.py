"""Whether a module is called while another is made.

Models run their layers once in a constructor, to learn a shape or a stride, on another device and with gradients.
Nothing of that is the program's work, and to compile those layers takes minutes.

Asked of the code of the frames alone: to read a frame's variables would change them, in Python before 3.13.
"""

from __future__ import annotations

import sys

from ..core.annotations import Any, CodeType, Iterator, Log

# Called more often than this by constructors, and from no other module, a module works: a training loop runs in one.
MOST_TRIES = 256


class Constructors:
    """Tells calls by constructors of modules, of torch's `module_class`, from others."""

    def __init__(self, module_class: type, log: Log) -> None:
        self._module_class = module_class
        self._log = log
        # Of functions named `__init__`, whether a module is made by them.
        self._make_modules: dict[CodeType, bool] = {}
        self._num_tries: dict[int, int] = {}

    def is_trying(self, module: Any) -> bool:
        """Whether one that is running calls `module`, as it has not done often."""
        try:
            if not self._is_running():
                return False
            number = self._num_tries[id(module)] = self._num_tries.get(id(module), 0) + 1
            return number <= MOST_TRIES
        except Exception as error:
            self._log("constructors", error)
            return False

    def _is_running(self) -> bool:
        frame = sys._getframe().f_back
        while frame is not None:
            if frame.f_code.co_name == "__init__" and self._makes_modules(frame.f_code):
                return True
            frame = frame.f_back
        return False

    def _makes_modules(self, code: CodeType) -> bool:
        known = self._make_modules.get(code)
        if known is None:
            known = self._make_modules[code] = any(code is one for one in self._codes())
        return known

    def _codes(self) -> Iterator[CodeType]:
        """Of all constructors of modules, those of mixins too, and what decorators made of them."""
        for each in _subclasses(self._module_class):
            for owner in type.mro(each):
                function = vars(owner).get("__init__")
                while function is not None:
                    if (code := getattr(function, "__code__", None)) is not None:
                        yield code
                    function = getattr(function, "__wrapped__", None)


def _subclasses(base: type) -> Iterator[type]:
    found: dict[int, type] = {}
    left = [base]
    while left:
        one = left.pop()
        if id(one) not in found:
            found[id(one)] = one
            yield one
            left.extend(type.__subclasses__(one))
