"""Environment variables: any of them, set or taken away before the process starts."""

from __future__ import annotations

import re

from dynotune.knobs import caches
from dynotune.schema.knob import Env, Knob
from dynotune.schema.setting import Setting

__all__ = ["KNOBS", "for_variable", "loads_code"]

# Variables that make the linker, a shell, Python or a library load files that somebody else names. No list of
# them is complete; it holds what the tools of this field document.
_LOADING = re.compile(
    r"LD_.*|PYTHON(?!HASHSEED$|UNBUFFERED$|MALLOC$|OPTIMIZE$).*|PATH|HOME|XDG_.*|BASH_ENV|ENV|SHELLOPTS|BASHOPTS|IFS|PS4"
    r"|BASH_FUNC_.*|GLIBC_TUNABLES|GCONV_PATH|LOCPATH|GIT_.*|CC|CXX|NVCC.*|CUDA_HOME|CUDA_PATH|.*_HOME|.*_CONFIG_FILE"
    r"|.*PLUGIN.*|.*INJECTION.*|.*PRELOAD.*|.*_CACHE(_DIR|_PATH)?|.*_DIR|.*_PATH|.*_URL|.*_ENDPOINT|.*_PROXY|NCCL_CONF.*"
    r"|TORCH_LOGS_OUT|.*TRUST_REMOTE_CODE|TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD|DYNOTUNE.*",
    re.IGNORECASE,
)


def loads_code(setting: Setting) -> bool:
    """Whether the setting may make a program load code or data that whoever wrote it chose."""
    return setting.knob.startswith("env.") and _LOADING.fullmatch(setting.knob.removeprefix("env.")) is not None


def for_variable(name: str) -> Knob:
    """The knob `env.NAME`."""
    known = next((knob for knob in caches.KNOBS if knob.id == f"env.{name}"), None)
    return known or Knob(
        id=f"env.{name}",
        site=Env(name),
        type="str",
        default="as in the environment that dynotune was started from",
        when="process",
        effect="semantics",
        doc=(
            f"The environment variable {name}. `env.{name}=@unset` takes it away. The program cannot change "
            "it afterwards: its own writes do not reach C code or child processes."
        ),
        hurts=("What a variable may change is up to whoever reads it; some are read once, when a library is loaded."),
        source="https://docs.pytorch.org/docs/stable/torch_environment_variables.html",
    )


# One entry stands for all of them in a listing.
KNOBS = (for_variable("NAME"),)
