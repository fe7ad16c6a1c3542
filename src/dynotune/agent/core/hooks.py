"""Call a function when a module has been imported, without changes that the program could see.

Python sees the real spec, loader and module: only `exec_module` of that one loader instance is covered, and
uncovered after it has run. So `find_spec`, `inspect` and `importlib.resources` find the same as without the
agent.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from threading import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

    from .annotations import Log


class AfterImport:
    """A finder at the front of `sys.meta_path` that finds nothing by itself."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._waiting: dict[str, list[Callable[[Any], object]]] = {}
        self._before: dict[str, Callable[[], object]] = {}
        self._searching: set[tuple[str, int]] = set()

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Wait for no module any more."""
        self._waiting.clear()
        self._before.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def call(self, name: str, callback: Callable[[Any], object]) -> None:
        """Call `callback(module)` once the module `name` is imported, or at once if the module is already
        imported."""
        module = sys.modules.get(name)
        if module is not None and not _is_loading(module):
            self._run(callback, "after import of " + name, module)
        else:
            self._waiting.setdefault(name, []).append(callback)

    def call_before(self, name: str, callback: Callable[[], object]) -> None:
        """Call `callback()` when the module `name`, which may be built in, is about to be imported first."""
        self._before[name] = callback

    def offer_stub(self, name: str, attributes: dict[str, Any]) -> None:
        """Provide a module with `attributes` for `import name` if the environment has no module of that
        name."""
        sys.meta_path.insert(0, _Stub(name, attributes))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in self._before:
            self._run(self._before.pop(name), "before import of " + name)
        search = name, get_ident()
        if name not in self._waiting or search in self._searching:
            return None
        try:
            self._searching.add(search)  # a finder that asks the others also asks this one
            spec = next(_found_by_others(self, name, path, target), None)
            if spec is not None:
                self._cover(name, spec)
            return spec
        finally:
            self._searching.discard(search)

    def _cover(self, name: str, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        original = getattr(loader, "exec_module", None)
        if original is None:
            return

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != name:  # a loader of several modules
                original(module)
                return
            if loader.exec_module is exec_module:  # found twice through one loader, it is covered twice
                del loader.exec_module
            original(module)
            for callback in self._waiting.pop(name, ()):
                self._run(callback, "after import of " + name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # the loader is a class or has slots (a frozen or built-in module)
            self._log("hooks", RuntimeError("cannot wait for " + name))

    def _run(self, callback: Callable[..., object], where: str, *args: object) -> None:
        try:
            callback(*args)
        except Exception as error:
            self._log(where, error)


class _Stub:
    """A finder that creates one module on the spot if the other finders have no file for it.

    This finder asks the other finders first: a folder named like the module would look like a namespace
    package.
    """

    def __init__(self, name: str, attributes: dict[str, Any]) -> None:
        self._name, self._attributes = name, attributes

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name:
            return None
        loader: Any = self
        found = (spec for spec in _found_by_others(self, name, path, target) if spec.has_location)
        return next(found, None) or ModuleSpec(name, loader)

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._attributes)


def _found_by_others(finder: object, name: str, *where: Any) -> Iterator[ModuleSpec]:
    for other in sys.meta_path:
        find = getattr(other, "find_spec", None)
        if other is not finder and find is not None and (spec := find(name, *where)) is not None:
            yield spec


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
