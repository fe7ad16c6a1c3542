"""Sees the calls of outermost modules.

Module hooks would be inlined by torch.compile, pickled with the model and kept on inner modules, so there are none.
While the step is searched for, `Module.__call__` is covered; afterwards only the classes of the modules that the step
needs. Covers go before the first compilation begins, and those of classes stay once something is compiled: a graph
that has seen a class must find it unchanged, or it would be compiled again.
"""

import functools
from threading import get_ident


class Roots:
    """Calls `first(module)` before a root runs for the first time, and `after(module, args, kwargs)` each time.

    Args:
        around: None, or `around(call, module, args, kwargs)` that makes the call.
    """

    def __init__(self, torch, first, after, around, log):
        self._module = torch.nn.Module
        self.original = torch.nn.Module.__call__
        self._is_compiling = torch.compiler.is_compiling
        self._is_grad_enabled = torch.is_grad_enabled
        self._first, self.after, self._around, self._log = first, after, around, log
        self._busy = set()
        self._known = {}
        self._covers = {}
        self._compiled = False

    def watch_all(self):
        """Cover every module's call, unless something is compiled. torch.compile still finds the original."""
        if not self._compiled:
            self._module.__call__ = self._cover(self.original)

    def pause(self, function):
        """`function` (torch.compile), called with the original `Module.__call__` in place."""

        @functools.wraps(function)
        def paused(*args, **kwargs):
            covered = self._module.__dict__.get("__call__")
            if covered is self.original:
                return function(*args, **kwargs)
            self._module.__call__ = self.original
            try:
                return function(*args, **kwargs)
            finally:
                if not self._compiled:
                    self._module.__call__ = covered

        return paused

    def compilation_begins(self):
        """From here on nothing that a graph could have seen may change."""
        if self._compiled:
            return
        self._compiled = True
        if self._module.__call__ is not self.original:
            self._module.__call__ = self.original
            for module_class in self.known_classes():
                self._cover_class(module_class)

    def watch_only(self, classes):
        """Uncover all but `classes`; with compiled code about, covers of classes stay."""
        if self._module.__dict__.get("__call__") is not self.original:
            self._module.__call__ = self.original
        for module_class in classes:
            self._cover_class(module_class)
        if not self._compiled:
            for module_class in set(self._covers) - set(classes):
                self._uncover_class(module_class)

    def inside(self):
        """Whether this thread is inside a root's call."""
        return get_ident() in self._busy

    def known_classes(self):
        return set(self._known.values())

    def _cover_class(self, module_class):
        if module_class in self._covers:
            return
        own = module_class.__dict__.get("__call__")
        self._covers[module_class] = own
        module_class.__call__ = self._cover(module_class.__call__)

    def _uncover_class(self, module_class):
        own = self._covers.pop(module_class)
        if own is None:
            del module_class.__call__
        else:
            module_class.__call__ = own

    def _cover(self, original):
        is_compiling, busy, known, around = self._is_compiling, self._busy, self._known, self._around

        def __call__(module, *args, **kwargs):
            # First, so that a traced call folds to the original's and guards nothing of ours.
            if is_compiling():
                return original(module, *args, **kwargs)
            thread = get_ident()
            # In __dict__, for a module's own __getattr__ is slow to say no.
            if thread in busy or "_is_replica" in module.__dict__:
                return original(module, *args, **kwargs)
            busy.add(thread)
            try:
                if id(module) not in known:
                    self._meet(module)
                if around is None:
                    output = original(module, *args, **kwargs)
                else:
                    output = around(original, module, args, kwargs)
            finally:
                busy.discard(thread)
            try:
                self.after(module, args, kwargs)
            except Exception as error:
                self._log("roots", error)
            return output

        __call__.__name__ = "_wrapped_call_impl"
        __call__.__qualname__ = original.__qualname__
        __call__.__module__ = original.__module__
        return __call__

    def _meet(self, module):
        self._known[id(module)] = type(module)
        try:
            self._first(module)
        except Exception as error:
            self._log("roots", error)
