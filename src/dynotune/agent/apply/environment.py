"""Apply settings that the process was started with: environment variables, allocator keys, preloaded libraries.

Some variables keep their value against the program's writes, which the agent intercepts in Python. C code (`getenv`)
and children then see the kept value, whatever the program writes. `os.environ` shows the same value, with two necessary
exceptions. A variable that is kept unset shows the value that the program wrote, since reading that value back must not
raise KeyError. A deleted variable disappears from `os.environ`, since `os.environ.clear()` would otherwise never end.
"""

from __future__ import annotations

import functools
import os
import sys

from ..core.annotations import Answer, Any, Event, Name, Planned
from .site import Site, answer

_UNSET = "@unset"
# Placeholder for a secret, which the plan does not contain; the process was started with the secret itself.
_REDACTED = "@redacted"
_putenv, _unsetenv = os.putenv, os.unsetenv


class _Kept:
    """The kept variables of this process; None keeps a variable unset."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.written: dict[bytes, bytes | None] = {}
        self._installed = False

    def add(self, values: dict[str, str | None]) -> None:
        for name, value in values.items():
            key = os.fsencode(name)
            self.values[key] = None if value is None else os.fsencode(value)
            self._establish(key, self.values[key])
        if not self._installed:
            self._installed = True
            self._cover_putenv()
            self._cover_environ()

    def _establish(self, key: bytes, value: bytes | None) -> None:
        # A parent may have passed on a copy of its os.environ, with values that it was not allowed to set.
        data: dict[bytes, bytes] = vars(os.environ)["_data"]
        if data.get(key) == value:
            return
        if value is None:
            _unsetenv(key)
            del data[key]
        else:
            _putenv(key, value)
            data[key] = value

    def _cover_putenv(self) -> None:
        kept, written = self.values, self.written

        @functools.wraps(_putenv)
        def keep_putenv(name: Name, value: Name, /) -> None:
            key = os.fsencode(name)
            if key not in kept:
                return _putenv(name, value)
            # Raise the audit event of the real putenv, so that observers still see the attempt.
            sys.audit("os.putenv", key, os.fsencode(value))
            written[key] = os.fsencode(value)
            return None

        @functools.wraps(_unsetenv)
        def keep_unsetenv(name: Name, /) -> None:
            key = os.fsencode(name)
            if key not in kept:
                return _unsetenv(name)
            sys.audit("os.unsetenv", key)
            written[key] = None
            return None

        # os.environ and os.environb look up these functions in the module at every write.
        os.putenv, os.unsetenv = keep_putenv, keep_unsetenv

    def _cover_environ(self) -> None:
        environ: Any = type(os.environ)
        kept = self.values
        setitem = environ.__setitem__

        @functools.wraps(setitem)
        def keep_setitem(mapping: Any, key: Any, value: Any) -> None:
            setitem(mapping, key, value)
            encoded = mapping.encodekey(key)
            if kept.get(encoded) is not None:
                mapping._data[encoded] = kept[encoded]

        environ.__setitem__ = keep_setitem


_kept = _Kept()


class EnvironmentSite(Site):
    """Apply `env.NAME`."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        super().__init__([_with_secret(setting) for setting in planned], event)
        self._names = {setting["site"]["name"] for setting in planned if setting.get("keep", True)}

    def before_torch(self) -> None:
        _kept.add(
            {
                setting["site"]["name"]: None if setting["value"] == _UNSET else str(setting["value"])
                for setting in self.planned
                if setting.get("keep", True) and setting["value"] != _REDACTED
            }
        )

    def is_kept(self, name: str) -> bool:
        return name in self._names

    def read(self, setting: Planned) -> Answer:
        name = setting["site"]["name"]
        found = c_getenv(name)
        asked = None if setting["value"] == _UNSET else str(setting["value"])
        effect = seen_effect(name, asked) if asked is not None and found == asked else None
        if effect is not None:
            return answer(setting, effect[0], effect[1], effect[0] == asked, _what_the_program_wrote(name))
        detail, witness = _what_the_program_wrote(name), "the process's environment (getenv)"
        return answer(setting, _UNSET if found is None else found, witness, found == asked, detail)


def _with_secret(setting: Planned) -> Planned:
    if setting["value"] != _REDACTED:
        return setting
    return {**setting, "value": os.environ.get(setting["site"]["name"], _REDACTED)}


class AllocatorSite(EnvironmentSite):
    """Apply `alloc.*`: each setting is a key in the allocator's environment variable, which has two names."""

    def __init__(self, planned: list[Planned], event: Event) -> None:
        Site.__init__(self, planned, event)
        site = planned[0]["site"]
        self._variables = {site["variable"]: site["conf"], site["other"]: None}
        self._names = set(self._variables)

    def before_torch(self) -> None:
        _kept.add(self._variables)

    def read(self, setting: Planned) -> Answer:
        conf, witness = self._settings_in_force()
        if conf is None:
            return answer(setting, None, "none", None, witness)
        key, asked = setting["site"]["key"], setting["site"]["text"]
        found = conf.get(key)
        detail = "" if found == asked else "the allocator works with " + str(conf)
        return answer(setting, "not set" if found is None else found, witness, found == asked, detail)

    def _settings_in_force(self) -> tuple[dict[str, str] | None, str]:
        """Return the allocator's settings (key to text) and the source of these settings, or None and a reason."""
        torch = self.torch
        if torch is None:
            return None, "torch was not imported"
        read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
        if read is not None:
            return split_conf(read()), "torch's allocator settings"
        # Older versions report settings only in the snapshot, which needs a live CUDA context.
        if torch.cuda.is_initialized():
            settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
            conf = settings.get("PYTORCH_ALLOC_CONF") or settings.get("PYTORCH_CUDA_ALLOC_CONF")
            if conf is not None:
                return split_conf(conf), "the allocator settings in torch's memory snapshot"
        return None, "this version of torch does not show its allocator's settings"


class PreloadSite(Site):
    """Apply `host.malloc`."""

    def read(self, setting: Planned) -> Answer:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            mapped = {os.path.basename(line.split()[-1]) for line in maps if "/" in line}
        found = "system"
        for name, libraries in setting["site"]["libraries"].items():
            if any(file.startswith(library.split(".so")[0] + ".so") for library in libraries for file in mapped):
                found = name
        return answer(setting, found, "libraries mapped into the process", found == setting["value"])


def split_conf(conf: str) -> dict[str, str]:
    """Split `a:1,b:[2,3]` into a dict of key to text; the allocator ignores spaces."""
    items: list[str] = []
    depth, item = 0, ""
    for char in "".join(conf.split()):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += char
    return dict(entry.split(":", 1) for entry in [*items, item] if ":" in entry)


def c_getenv(name: str) -> str | None:
    """Return an environment variable as C code sees it; None if the variable is not set."""
    import ctypes

    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    value: bytes | None = getenv(os.fsencode(name))
    return None if value is None else os.fsdecode(value)


def _what_the_program_wrote(name: str) -> str:
    key = os.fsencode(name)
    if key not in _kept.written:
        return ""
    value = _kept.written[key]
    if value is None:
        return "the program removed it; it was kept"
    detail = "the program set it to %s; it was kept" % os.fsdecode(value)
    if _kept.values.get(key) is None and key in getattr(os.environ, "_data", {}):
        detail += " out of the process's environment, but Python code that reads os.environ still sees it"
    return detail


_LOADING_MODES = {1: "EAGER", 2: "LAZY"}


def seen_effect(name: str, asked: str) -> tuple[str, str] | None:
    """Return the value that took effect, in the setting's notation, and the source of the value; None while unknown."""
    try:
        if name == "TORCHINDUCTOR_COMPILE_THREADS":
            return _compile_threads()
        return _module_loading() if name == "CUDA_MODULE_LOADING" and asked in _LOADING_MODES.values() else None
    except (AttributeError, OSError):  # in another version of torch, only the variable itself is known
        return None


def _compile_threads() -> tuple[str, str] | None:
    config: Any = sys.modules.get("torch._inductor.config")
    threads = getattr(config, "compile_threads", None)
    return None if threads is None else (str(threads), "torch._inductor.config.compile_threads")


def _module_loading() -> tuple[str, str] | None:
    """Ask the CUDA driver how it loads modules, after torch has started CUDA: the question must not start CUDA."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    import ctypes

    mode = ctypes.c_int()
    if ctypes.CDLL("libcuda.so.1").cuModuleGetLoadingMode(ctypes.byref(mode)) != 0:
        return None
    found = _LOADING_MODES.get(mode.value)
    return None if found is None else (found, "cuModuleGetLoadingMode")
