"""Environment variables: any of them, set or taken away before the process starts."""

from __future__ import annotations

from dynotune.knobs import caches
from dynotune.schema.knob import Env, Knob


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
        doc=f"The environment variable {name}. `env.{name}=@unset` takes it away. The program cannot change "
        "it afterwards: its own writes do not reach C code or child processes.",
        hurts="What a variable may change is up to whoever reads it; some are read once, when a library is loaded.",
        source="https://docs.pytorch.org/docs/stable/torch_environment_variables.html",
    )


# One entry stands for all of them in a listing.
KNOBS = (for_variable("NAME"),)
