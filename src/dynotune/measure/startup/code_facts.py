"""Facts `code.*`: of the libraries of a command, what this machine's GPU has to compile when they are loaded."""

from __future__ import annotations

from pathlib import Path

from dynotune.probe.gpu_code import code_places, device_code
from dynotune.schema.device_code import DeviceCode
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.run import RunSpec

NAMES = ("code.num_compiled", "code.num_cannot", "code.ptx_bytes", "code.compiled")
DEADLINE_S = 30.0
"""A whole installation of torch takes a third of it from a cold disk."""
NUM_NAMED = 3


def facts(run: RunSpec) -> Facts:
    """Of the command as `dynotune startup scan -- COMMAND` would find it. Reads headers of files alone."""
    gpus = device_code.gpus_here(run.env)
    if isinstance(gpus, Unknown):
        return dict.fromkeys(NAMES, gpus)
    places = code_places.Places()
    found = code_places.of_command(run.command, places, run.env, run.cwd)
    if isinstance(found, Unknown):
        return dict.fromkeys(NAMES, found)
    return of_scan(device_code.scan(places, gpus, deadline_s=DEADLINE_S))


def of_scan(scanned: DeviceCode) -> Facts:
    """Of the first kind of GPU; a library that holds both machine code and PTX alone for it is compiled in part."""
    if not scanned.complete:
        return dict.fromkeys(NAMES, Unknown(f"not every library was read in {DEADLINE_S:.0f} s"))
    if not scanned.summaries:
        return dict.fromkeys(NAMES, Unknown("no GPU to judge for"))
    compiled = [library for library in scanned.libraries if library.verdicts[0].num_jit]
    compiled.sort(key=lambda library: -library.verdicts[0].ptx_bytes)
    return {
        "code.num_compiled": len(compiled),
        "code.num_cannot": sum(library.verdicts[0].verdict == "cannot" for library in scanned.libraries),
        "code.ptx_bytes": sum(library.verdicts[0].ptx_bytes for library in compiled),
        "code.compiled": [Path(library.path).name for library in compiled[:NUM_NAMED]],
    }
