"""How these programs are to run: as written, or as the environment variable TUNED_AS says.

`TUNED_AS=informed` is what someone who knows the usual advice would write: TF32, autocast to bfloat16, a
worker for each core, pinned memory. Otherwise it holds words, a comma between: tf32, cudnn_benchmark,
amp=bf16, amp=fp16, compile=MODE, channels_last, fused, workers=NUMBER, pin.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    """Nothing of it is asked for as written. `compile`: a mode of torch.compile."""

    tf32: bool = False
    cudnn_benchmark: bool = False
    amp: str = ""
    compile: str = ""
    channels_last: bool = False
    fused: bool = False
    workers: int | None = None
    pin: bool = False
    informed: bool = False


def asked(words: str | None = None) -> Asked:
    """What `words` say, or without them TUNED_AS. Raises ValueError for a word that is none."""
    words = os.environ.get("TUNED_AS", "") if words is None else words
    if words == "informed":
        return Asked(tf32=True, amp="bf16", workers=len(os.sched_getaffinity(0)), pin=True, informed=True)
    found: dict[str, object] = {}
    for word in filter(None, words.split(",")):
        name, _, value = word.partition("=")
        if name in ("amp", "compile") and value:
            found[name] = value
        elif name == "workers":
            found[name] = int(value)
        elif name in ("tf32", "cudnn_benchmark", "channels_last", "fused", "pin") and not value:
            found[name] = True
        else:
            raise ValueError(f"TUNED_AS has {word!r}, which is none of its words")
    return Asked(**found)  # type: ignore[arg-type]
