"""Where each cache is for a command, from its environment alone."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dynotune.schema.caches import CacheName
from dynotune.schema.facts import Unknown

CUDA_LARGEST_LIMIT_BYTES = 4 << 30
HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


class Place(NamedTuple):
    """A cache's folder, which need not exist; the variable that moves it; why nothing is kept there."""

    name: CacheName
    path: Path | Unknown
    variable: str = ""
    is_set: bool = False
    off: str = ""


def places(env: Mapping[str, str], cwd: Path) -> list[Place]:
    """The caches of a command under `env`, started in `cwd` by this user.

    cuDNN's plans are not among them: torch keeps them in memory only.

    Sources: https://docs.nvidia.com/cuda/cuda-programming-guide (CUDA_CACHE_*); torch/_inductor/runtime/
    cache_dir_utils.py and codecache.py; triton/runtime/cache.py; aten/src/ATen/native/cuda/jit_utils.cpp.
    """
    return [_cuda(env, cwd), *_inductor(env, cwd), _triton(env, cwd), _jiterator(env, cwd)]


def cuda_limit_bytes(env: Mapping[str, str]) -> int | Unknown:
    """The most that the driver keeps; a larger CUDA_CACHE_MAXSIZE counts as 4 GiB."""
    text = env.get("CUDA_CACHE_MAXSIZE", "").strip()
    if not text:
        return Unknown("CUDA_CACHE_MAXSIZE is not set; the driver's own limit is 1 GiB, 256 MiB of older ones")
    if not text.isascii() or not text.isdecimal():
        return Unknown(f"CUDA_CACHE_MAXSIZE={text} is no number of bytes")
    return min(int(text), CUDA_LARGEST_LIMIT_BYTES)


def _cuda(env: Mapping[str, str], cwd: Path) -> Place:
    # The driver asks for HOME, and knows no other way.
    home = env.get("HOME")
    given = env.get("CUDA_CACHE_PATH") or (f"{home}/.nv/ComputeCache" if home else None)
    off = _off(env, "CUDA_CACHE_DISABLE") or ("there is no HOME to keep it in" if given is None else "")
    path = Unknown("HOME is not set") if given is None else _absolute(given, cwd)
    return Place("cuda", path, "CUDA_CACHE_PATH", bool(env.get("CUDA_CACHE_PATH")), off)


def _inductor(env: Mapping[str, str], cwd: Path) -> list[Place]:
    default = _temporary_folder(env, cwd) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", _user(env)))
    given = env.get("TORCHINDUCTOR_CACHE_DIR")
    off = _off(env, "TORCHINDUCTOR_FORCE_DISABLE_CACHES")
    if not off and env.get("TORCHINDUCTOR_FX_GRAPH_CACHE", "1") != "1":
        off = "TORCHINDUCTOR_FX_GRAPH_CACHE is off: graphs are compiled anew at each start"
    # They stand in the default folder whatever TORCHINDUCTOR_CACHE_DIR says.
    headers_off = f"{HEADERS}=0" if env.get(HEADERS, "1") != "1" else ""
    path = default if given is None else _absolute(given, cwd)
    return [
        Place("inductor", path, "TORCHINDUCTOR_CACHE_DIR", given is not None, off),
        Place("headers", default / "precompiled_headers", off=headers_off),
    ]


def _triton(env: Mapping[str, str], cwd: Path) -> Place:
    given = env.get("TRITON_CACHE_DIR", "").strip()
    home = env.get("TRITON_HOME") or env.get("HOME", _of_user("pw_dir"))
    where = given or (None if home is None else f"{home or '.'}/.triton/cache")
    path = Unknown("there is no home folder") if where is None else _absolute(where, cwd)
    return Place("triton", path, "TRITON_CACHE_DIR", bool(given), _off(env, "TRITON_ALWAYS_COMPILE"))


def _jiterator(env: Mapping[str, str], cwd: Path) -> Place:
    off = "USE_PYTORCH_KERNEL_CACHE=0" if env.get("USE_PYTORCH_KERNEL_CACHE") == "0" else ""
    name = "PYTORCH_KERNEL_CACHE_PATH"
    if name in env:
        path = _absolute(env[name], cwd)
        # torch makes the folder below a home, but not the one that it is given.
        return Place("jiterator", path, name, True, off or ("" if path.is_dir() else f"{path} is not there"))
    base = env.get("XDG_CACHE_HOME", f"{env['HOME']}/.cache" if "HOME" in env else None)
    if base is None:
        return Place("jiterator", Unknown("HOME is not set"), name, False, off or "there is no HOME to keep it in")
    return Place("jiterator", _absolute(base, cwd) / "torch" / "kernels", name, False, off)


def _off(env: Mapping[str, str], name: str) -> str:
    return f"{name} is set" if env.get(name, "").strip().lower() not in ("", "0", "false", "off", "no") else ""


def _absolute(path: str, cwd: Path) -> Path:
    return Path(os.path.normpath(cwd.absolute() / path))


def _user(env: Mapping[str, str]) -> str:
    """As getpass.getuser, and as torch where that fails."""
    named = next((env[name] for name in ("LOGNAME", "USER", "LNAME", "USERNAME") if env.get(name)), None)
    return named or _of_user("pw_name") or f"uid_{os.getuid()}"


def _of_user(field: str) -> str | None:
    try:
        found: str = getattr(pwd.getpwuid(os.getuid()), field)
    except KeyError:
        return None
    return found


def _temporary_folder(env: Mapping[str, str], cwd: Path) -> Path:
    """As tempfile.gettempdir: the first that can be written."""
    named = [_absolute(env[name], cwd) for name in ("TMPDIR", "TEMP", "TMP") if env.get(name)]
    folders = [*named, Path("/tmp"), Path("/var/tmp"), Path("/usr/tmp")]
    return next((folder for folder in folders if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)), cwd)
