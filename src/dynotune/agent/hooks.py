"""Calls back when a module has been imported, and stays out of sight.

The spec, the loader and the module that Python sees are the real ones: only `exec_module` of that one loader
instance is covered, and uncovered when it has run. So `find_spec`, `inspect` and `importlib.resources` find what
they would find without us.
"""

import sys
from importlib.machinery import ModuleSpec


class AfterImport:
    """A finder, first on `sys.meta_path`, that finds nothing by itself."""

    def __init__(self, log):
        self._log = log
        self._waiting = {}

    def install(self):
        sys.meta_path.insert(0, self)

    def call(self, name, callback):
        """Call `callback(module)` once `name` is imported: now, if it already is."""
        module = sys.modules.get(name)
        if module is not None and not _is_loading(module):
            self._run(callback, module)
        else:
            self._waiting.setdefault(name, []).append(callback)

    def offer_stub(self, name, attributes):
        """Give a module with `attributes` for `import name` where the environment has none."""
        sys.meta_path.append(_Stub(name, attributes))

    def find_spec(self, name, path=None, target=None):
        if name not in self._waiting:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                self._cover(name, spec)
                return spec
        return None

    def _cover(self, name, spec):
        loader = spec.loader
        original = getattr(loader, "exec_module", None)
        if original is None:
            return

        def exec_module(module):
            del loader.exec_module
            original(module)
            for callback in self._waiting.pop(name, ()):
                self._run(callback, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader that is a class or has slots, of a frozen or built-in module
            self._log("hooks", RuntimeError("cannot wait for " + name))

    def _run(self, callback, module):
        try:
            callback(module)
        except Exception as error:
            self._log("after import of " + module.__name__, error)


class _Stub:
    """A finder, last on `sys.meta_path`, of one module that is made on the spot."""

    def __init__(self, name, attributes):
        self._name, self._attributes = name, attributes

    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name == self._name else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__dict__.update(self._attributes)


def _is_loading(module):
    return getattr(getattr(module, "__spec__", None), "_initializing", False)
