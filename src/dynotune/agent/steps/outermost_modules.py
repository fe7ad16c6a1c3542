"""Observe the calls of outermost modules.

Module hooks are not used, because torch.compile would inline hooks, pickles of the model would contain hooks,
and hooks would stay on inner modules. While the step is unknown, `Module.__call__` is covered; afterwards
only the classes of the modules that the step needs. Covers are removed before the first compilation begins.
Covers of classes then stay: a compiled graph that has seen a class must find it unchanged, or it would be
compiled again.
"""

from __future__ import annotations

import functools
import sys
import weakref
from threading import get_ident

from ..core.living_objects import instances

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any

    from ..core.annotations import Call, Log, Special

# A module that constructors call more often than this, and no other module calls, does real work, such as
# training.
MOST_TRIES = 256


class Constructors:
    """Distinguish calls by constructors of modules (of torch's `module_class`) from other calls.

    Models run layers once in a constructor, to find a shape or a stride, on another device and with
    gradients. Such calls in a constructor are not the program's work, and compiling those layers takes
    minutes.

    Only the code of frames is read: before Python 3.13, reading a frame's variables would change the
    variables.
    """

    def __init__(self, module_class: type, log: Log) -> None:
        self._module_class = module_class
        self._log = log
        # Maps the code of functions named `__init__` to whether they construct a module.
        self._make_modules: dict[CodeType, bool] = {}
        self._num_tries: dict[int, int] = {}

    def is_trying(self, module: Any) -> bool:
        """Tell whether a running constructor calls `module`, and constructors have called `module` only
        rarely."""
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
        """Yield the code of all constructors of modules, including mixins and decorated constructors."""
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


class OutermostModules:
    """Call `first(module)` before an outermost module first runs, `ran(module)` after that run, and
    `after(module, args, kwargs)` after each call.

    `around`: None, or a function `around(call, module, args, kwargs)` that makes the call.
    """

    def __init__(
        self,
        torch: Any,
        first: Callable[[Any], None],
        ran: Callable[[Any], None],
        after: Callable[[Any, tuple[Any, ...], dict[str, Any]], None],
        around: Callable[[Call, Any, tuple[Any, ...], dict[str, Any]], Any] | None,
        log: Log,
    ) -> None:
        self._module = torch.nn.Module
        self.original: Call = torch.nn.Module.__call__
        self._is_compiling: Callable[[], bool] = torch.compiler.is_compiling
        # Its contents are read without the call, which every step would pay for. No graph may see this
        # object.
        flags = vars(torch.compiler)
        direct = functools.partial(flags.__getitem__, "_is_compiling_flag")
        self._is_compiling_yet = direct if "_is_compiling_flag" in flags else self._is_compiling
        self._first, self._ran, self.after, self.around, self._log = first, ran, after, around, log
        self._busy: set[int] = set()
        # By identity, while they live; and all classes, so that they stay known after the modules are dead.
        self._known: dict[int, weakref.ref[Any]] = {}
        self._known_classes: set[type] = set()
        self._running_first: set[int] = set()
        self._constructors = Constructors(torch.nn.Module, log)
        self._covers: dict[type, tuple[Call | None, Call]] = {}
        self._cover_of_all: Call | None = None
        self._compiled = False
        self._special: Special | None = None

    def watch_all(self) -> None:
        """Cover every module's call, unless something is compiled. torch.compile still finds the original."""
        if not self._compiled and self._module.__call__ is self.original:
            self._cover_of_all = self._module.__call__ = self._cover(self.original)

    def pause(self, function: Call) -> Call:
        """Return `function` (torch.compile), called with the original `Module.__call__` restored."""

        @functools.wraps(function)
        def paused(*args: Any, **kwargs: Any) -> Any:
            if not self._covers_all():
                return function(*args, **kwargs)
            self._module.__call__ = self.original
            try:
                return function(*args, **kwargs)
            finally:
                if not self._compiled and self._module.__call__ is self.original:
                    self._module.__call__ = self._cover_of_all

        return paused

    def compilation_begins(self) -> None:
        """From now on, change nothing that a compiled graph could depend on."""
        if self._compiled:
            return
        self._compiled = True
        for module_class in list(self._covers):
            self._uncover_class(module_class)
            self._cover_class(module_class)
        if self._covers_all():
            self._module.__call__ = self.original
            for module_class in self.known_classes() or self._uncalled_classes():
                self._cover_class(module_class)

    def compilation_began(self) -> None:
        """Note that the program had compiled code before the agent came: no class of a module changes."""
        self._compiled = True

    def leave(self) -> list[str]:
        """Uncover all classes; return the names of those whose cover other code has covered."""
        self.around, self._compiled, self._special = None, False, None
        self.watch_only(set())
        return ["%s.__call__" % kind.__name__ for kind in self._covers]

    def _uncalled_classes(self) -> set[type]:
        """Return the classes of modules that no other module contains, for a program that compiles before any
        call."""
        modules = instances(self._module)
        inner = {id(part) for module in modules for part in module.children()}
        return {type(module) for module in modules if id(module) not in inner}

    def watch_only(self, classes: set[type], special: Special | None = None) -> None:
        """Uncover all classes but `classes`; once the program has compiled code, covers of classes stay.

        Args:
            special: makes a faster cover for `classes` from the original call, the usual cover,
                `is_compiling`, the threads inside a root's call, and the log.
        """
        if self._covers_all():
            self._module.__call__ = self.original
        self._special = special
        for module_class in classes:
            if not self._compiled:
                self._uncover_class(module_class)
            self._cover_class(module_class)
        if not self._compiled:
            for module_class in set(self._covers) - set(classes):
                self._uncover_class(module_class)

    def call_plainly(self, classes: set[type]) -> None:
        """From now on, cover only `classes`, if covers may still change, and make no calls through
        `around`."""
        self.around = None
        self.watch_only(classes)

    def reset_after_fork(self) -> None:
        """Forget all threads but this thread, since a new thread may get the id of a thread that was inside a
        call."""
        self._busy.intersection_update({get_ident()})

    def _covers_all(self) -> bool:
        """Tell whether the agent's cover of every module's call can be removed: other code may have covered
        it."""
        return self._cover_of_all is not None and self._module.__call__ is self._cover_of_all

    def inside(self) -> bool:
        """Tell whether the current thread is inside a call of an outermost module."""
        return get_ident() in self._busy

    def alive(self) -> list[Any]:
        """List the outermost modules that the program still refers to."""
        return [module for module in (met() for met in list(self._known.values())) if module is not None]

    def known_classes(self) -> list[type]:
        return list(self._known_classes)

    def _cover_class(self, module_class: Any) -> None:
        if module_class in self._covers:
            return
        own = module_class.__dict__.get("__call__")
        cover = self._cover(module_class.__call__)
        module_class.__call__ = cover
        self._covers[module_class] = own, cover

    def _uncover_class(self, module_class: Any) -> None:
        own, cover = self._covers.get(module_class, (None, None))
        if cover is None or module_class.__dict__.get("__call__") is not cover:
            return  # somebody has covered our cover
        del self._covers[module_class]
        if own is None:
            del module_class.__call__
        else:
            module_class.__call__ = own

    def _cover(self, original: Call) -> Call:
        is_compiling = self._is_compiling if self._compiled else self._is_compiling_yet
        busy, known, running_first = self._busy, self._known, self._running_first
        roots = self

        # The module must be named `self`: torch's profiler reads this variable of the frame of
        # `Module.__call__`.
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            # First, so that a traced call folds to the original and guards nothing of the agent.
            if is_compiling():
                return original(self, *args, **kwargs)
            thread = get_ident()
            if thread in busy:
                return original(self, *args, **kwargs)
            met = known.get(id(self))
            if (met is None or met() is not self) and not roots._meet(self, thread):
                return roots._pass_over(original, thread, self, args, kwargs)
            try:
                busy.add(thread)
                around = roots.around  # a task may change it
                output = around(original, self, args, kwargs) if around else original(self, *args, **kwargs)
            finally:
                busy.discard(thread)
            try:
                if running_first and id(self) in running_first:
                    running_first.discard(id(self))
                    roots._ran(self)
                roots.after(self, args, kwargs)
            except Exception as error:
                roots._log("roots", error)
            return output

        special = (
            self._special(original, __call__, is_compiling, busy, self._log) if self._special else __call__
        )
        for cover in (__call__, special):
            # These annotations mean something only to a type checker.
            cover.__annotations__ = {}
            cover.__name__ = "_wrapped_call_impl"
            cover.__qualname__ = original.__qualname__
            cover.__module__ = original.__module__
        return special

    def _pass_over(
        self, call: Call, thread: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a module that is not outermost; modules called inside this call are not outermost either."""
        try:
            self._busy.add(thread)
            return call(module, *args, **kwargs)
        finally:
            self._busy.discard(thread)

    def _meet(self, module: Any, thread: int) -> bool:
        """Tell whether a module is outermost; DataParallel's copies and modules tried out by a constructor
        are not."""
        # By __dict__, because a module's own __getattr__ is slow to refuse.
        if "_is_replica" in module.__dict__ or self._constructors.is_trying(module):
            return False
        try:
            self._busy.add(thread)
            self._known[id(module)] = weakref.ref(module)
            self._known_classes.add(type(module))
            self._running_first.add(id(module))
            self._first(module)
            for part in module.modules():
                if part is not module:
                    # If it is later called by itself again, it is registered again.
                    self._known.pop(id(part), None)
        except Exception as error:
            self._log("roots", error)
        finally:
            self._busy.discard(thread)
        return True
