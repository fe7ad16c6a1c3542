"""Collect the conditions that compiled code depends on, and compare this machine's conditions with a
pack's."""

import contextlib
import platform
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

from dynotune import probe
from dynotune.schema.cache_pack import Conditions, Difference, PackOrigin, Severity
from dynotune.schema.caches import TITLES
from dynotune.schema.facts import Facts, Unknown

COMPILER_TIMEOUT_S = 20.0
# Flags of /proc/cpuinfo that name instructions a compiler may use. The other flags concern kernel and
# hypervisor.
_X86_INSTRUCTIONS = re.compile(
    r"mmx|mmxext|sse\d?|sse4_[12]|sse4a|ssse3|pni|avx.*|amx.*|fma4?|f16c|bmi[12]|abm|adx|aes|pclmulqdq|vaes|vpclmulqdq"
    r"|gfni|sha_ni|sha512|sm[34]|popcnt|movbe|rdrand|rdseed|rdpid|fsgsbase|xsave|xsaveopt|xsavec|xsaves|clflushopt|clwb"
    r"|cldemote|movdiri|movdir64b|enqcmd|waitpkg|serialize|lahf_lm|cx16|cmov|fxsr|tbm|xop|lwp|3dnow.*|clzero|mwaitx|wbnoinvd"
    r"|prefetchi|rtm|hle|ptwrite|pku|cmpccxadd|kl|widekl|tsxldtrk"
)
# Variables that torch reads into the settings from which inductor's keys are made. The others only say where
# and how compilation happens. Sources: torch/_inductor/config.py (_cache_config_ignore_prefix), codecache.py.
# CXX is in the keys as text, also where all kernels are Triton's.
_KEYED = re.compile(
    r"TORCHINDUCTOR_(?!(CACHE_DIR|COMPILE_THREADS|WORKER_START|FORCE_DISABLE_CACHES|FX_GRAPH_.*|AUTOGRAD_.*"
    r"|BUNDLE.*|AUTOTUNE_.*CACHE|.*_LOG.*|.*DEBUG.*)$)[A-Z0-9_]+|TORCH_CACHING_PRECOMPILE"
    r"|AOT_INDUCTOR_(?!.*DEBUG)[A-Z0-9_]+|TORCHDYNAMO_AUTO_FUNCTIONALIZED_V2"
    r"|CXX|CUTEDSL_ENABLE_AUTOTUNING|CUTLASS_EPILOGUE_FUSION"
    r"|ENABLE_(PERSISTENT_TMA_MATMUL|TEMPLATE_TMA_STORE|TMA_LOAD_FOR_TEMPLATE_EPILOGUE)"
)
_COMPILER = "g++"
"""The compiler that inductor calls if CXX names none; its keys hold this text then."""
_IN_COMMAND = " in the command line that C++ kernels are keyed by"


def here(env: Mapping[str, str], python: str | Unknown, cwd: Path) -> Conditions:
    """Return the conditions of this machine and of the interpreter `python`, which runs in a child
    process."""
    return of_facts({**probe.nvml.facts(env), **probe.torch_build.ask(python, cwd, env)}, env, cwd)


def of_facts(facts: Facts, env: Mapping[str, str], cwd: Path) -> Conditions:
    """Return the conditions of this machine, whose facts `gpu.*`, `torch.*`, `python.*` and `package.*` are
    known."""
    cpuinfo = ""
    with contextlib.suppress(OSError):
        cpuinfo = Path("/proc/cpuinfo").read_text(errors="replace")
    cpu = re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.MULTILINE)
    version = _text(facts, "python.version")
    return Conditions(
        gpus=_gpus(env),
        driver="" if facts.get("gpu.count") == 0 else _text(facts, "gpu.driver"),
        cuda="" if facts.get("torch.cuda", "") is None else _text(facts, "torch.cuda"),
        torch=_text(facts, "torch.version"),
        triton=""
        if "package.triton" not in facts and version is not None
        else _text(facts, "package.triton"),
        python=".".join(version.split(".")[:2]) if version else None,
        platform=f"{platform.system()} {platform.machine()}",
        cpu=cpu[1].strip() if cpu else None,
        cpu_flags=instruction_sets(cpuinfo),
        compiler=_compiler(env, cwd),
        torch_folder=_text(facts, "torch.folder"),
        python_include=_text(facts, "python.include"),
    )


def differences(origin: PackOrigin, now: Conditions) -> list[Difference]:
    """List the pack's conditions that differ on this machine, the most serious difference first."""
    then, caches, cpp = origin.conditions, set(origin.caches), origin.has_cpp
    keyed = (
        f"{' and '.join(TITLES[name] for name in origin.caches) or 'nothing'}: their files are "
        "found by it, or were built for it"
    )
    plain = [
        (
            "driver",
            then.driver,
            now.driver,
            "cuda" in caches,
            "the driver's own cache is found by its version",
        ),
        ("CUDA of torch", then.cuda, now.cuda, caches & {"inductor", "jiterator", "packages"}, keyed),
        ("torch", then.torch, now.torch, caches & {"inductor", "headers", "jiterator", "packages"}, keyed),
        ("Triton", then.triton, now.triton, caches & {"triton", "inductor"}, keyed),
        ("Python", then.python, now.python, caches & {"triton", "inductor"}, "modules are built for it"),
        ("platform", then.platform, now.platform, True, "machine code is of one platform"),
        ("compiler", then.compiler, now.compiler, cpp, "it is part of their keys"),
        ("folder of torch", then.torch_folder, now.torch_folder, cpp, "it stands" + _IN_COMMAND),
        ("Python's headers", then.python_include, now.python_include, cpp, "they stand" + _IN_COMMAND),
    ]
    found = [
        _gpu(then, now, depends=bool(caches - {"headers"})),
        *(_plain(what, packed, here, bool(depends), why) for what, packed, here, depends, why in plain),
        _cpu_flags(then, now, native=cpp or "packages" in caches, keyed=cpp),
    ]
    order: tuple[Severity, ...] = ("dangerous", "useless", "unknown", "harmless")
    return sorted((each for each in found if each is not None), key=lambda each: order.index(each.severity))


def differing_variables(origin: PackOrigin, env: Mapping[str, str]) -> list[str]:
    """List variables in inductor's keys whose values under `env` are not those of the pack, as text."""
    names = sorted(name for name in {*origin.variables, *env} if _KEYED.fullmatch(name) is not None)
    found = []
    for name in names:
        then, now = (each.get(name) for each in (origin.variables, env))
        if name == "CXX" and (then or _COMPILER) == (now or _COMPILER):
            continue
        if then != now:
            packed = "packed without it" if then is None else f"packed with {then}"
            found.append(f"{name}: {packed}, here {'not set' if now is None else now}")
    return found


def instruction_sets(cpuinfo: str) -> list[str] | None:
    """Return the sorted instruction sets that all processors in a text of /proc/cpuinfo have; None if
    unknown."""
    lines = re.findall(r"^(flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    if not lines:
        return None
    common = set.intersection(*(set(words.split()) for _, words in lines))
    if lines[0][0] == "flags":
        common = {flag for flag in common if _X86_INSTRUCTIONS.fullmatch(flag)}
    return sorted(common)


def _plain(what: str, then: str | None, now: str | None, depends: bool, why: str) -> Difference | None:
    if then == now and then is not None:
        return None
    severity: Severity = (
        "harmless" if not depends else "unknown" if then is None or now is None else "useless"
    )
    packed, here = ("unknown" if value is None else value or "none" for value in (then, now))
    return Difference(what=what, packed=packed, here=here, severity=severity, why=why)


def _gpu(then: Conditions, now: Conditions, *, depends: bool) -> Difference | None:
    packed, here = (None if gpus is None else ", ".join(gpus) for gpus in (then.gpus, now.gpus))
    # The code must have been made for every GPU of this machine. Code for further GPUs does no harm.
    if then.gpus and now.gpus and set(now.gpus) <= set(then.gpus):
        return None
    return _plain(
        "GPU", packed, here, depends, "code is compiled for one GPU model, and found by the GPU's name"
    )


def _cpu_flags(then: Conditions, now: Conditions, *, native: bool, keyed: bool) -> Difference | None:
    """Return how the processors differ.

    Args:
        native: whether the pack has code for the processor that built it; `keyed`: whether its keys depend on
            that processor.
    """
    if then.cpu_flags is None or now.cpu_flags is None:
        return _plain(
            "processor",
            None,
            None,
            native,
            "C++ kernels use instructions of the processor on which they were built",
        )
    missing = sorted(set(then.cpu_flags) - set(now.cpu_flags))
    packed = then.cpu or "a processor"
    if missing:
        return Difference(
            what="processor",
            packed=f"{packed}, with {', '.join(missing)}",
            here=f"{now.cpu or 'a processor'}, without",
            severity="dangerous" if native else "harmless",
            why="C++ kernels were built with -march=native, and their keys do not tell one processor from "
            "another: "
            "they would be found here, and end with an illegal instruction",
        )
    if _vectors(then.cpu_flags) != _vectors(now.cpu_flags):
        return Difference(
            what="vector instructions",
            packed=_vectors(then.cpu_flags),
            here=_vectors(now.cpu_flags),
            severity="useless" if keyed else "harmless",
            why="inductor writes its kernels for the widest vectors, and they are part of the keys",
        )
    return None


def _vectors(flags: Collection[str]) -> str:
    """Return the width of the widest vectors that inductor uses on a processor with these flags.

    Source: torch/_inductor/cpu_vec_isa.py.
    """
    if "avx512f" in flags:
        return " ".join(
            ["avx512", *(each for each in ("avx512_bf16", "amx_tile", "amx_fp16") if each in flags)]
        )
    return next((name for name in ("avx2", "sve2", "sve", "asimd") if name in flags), "none")


def _text(facts: Facts, name: str) -> str | None:
    value = facts.get(name)
    return value if isinstance(value, str) else None


def _gpus(env: Mapping[str, str]) -> list[str] | None:
    indices = probe.nvml.visible_gpus(env)
    if isinstance(indices, Unknown) or not indices:
        return None if isinstance(indices, Unknown) else []
    try:
        with probe.nvml.session() as library:
            known = [probe.nvml.identity(library, index) for index in indices]
    except probe.nvml.NvmlUnavailable:
        return None
    named = [(_text(gpu, "gpu.name"), _text(gpu, "gpu.compute_capability")) for gpu in known]
    return None if any(None in each for each in named) else sorted({f"{name} ({cc})" for name, cc in named})


def _compiler(env: Mapping[str, str], cwd: Path) -> str | None:
    """Return the first line of the version of inductor's C++ compiler; empty if there is no compiler."""
    try:
        ended = subprocess.run(
            [env.get("CXX") or _COMPILER, "--version"],
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMPILER_TIMEOUT_S,
            check=False,
        )
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        return None
    return (
        next(iter(ended.stdout.decode(errors="replace").splitlines()), "") if ended.returncode == 0 else None
    )
