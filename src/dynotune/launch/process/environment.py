"""Build the environment of a command under settings, and the plan from which the agent reads its settings."""

import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

import dynotune
from dynotune import knobs
from dynotune.schema import redaction
from dynotune.schema.errors import CannotRunHere, UsageError
from dynotune.schema.facts import Facts
from dynotune.schema.knob import AllocConf, Env, Preload, Scalar, Site, is_of_launch
from dynotune.schema.setting import UNSET, Setting
from dynotune.schema.task import PlannedSetting

AGENT = Path(dynotune.__file__).parent / "agent"
"""The package that runs inside the user's process."""

ALLOC_CONF_NAMES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The old and the new name of the allocator's variable."""

_PlainSite = dict[str, str | list[str] | dict[str, list[str]]]


def build(
    settings: Sequence[Setting], base_env: Mapping[str, str], *, run_dir: Path | None, facts: Facts
) -> tuple[dict[str, str], list[PlannedSetting]]:
    """Build the command's environment under `settings`, and the agent's form of each setting applied in the
    process.

    Args:
        base_env: environment that the command would inherit; this function does not change `base_env`.
        run_dir: run folder, where the agent finds its plan and writes its record; None for a run without the
            agent.
        facts: facts of the machine; `torch.version` decides which name of the allocator's variable to use.

    Raises:
        UsageError: two settings set the same variable or option.
        CannotRunHere: a library to preload is not installed, or the allocator's variable is ambiguous.
    """
    _refuse_conflicts(settings)
    env = dict(base_env)
    chosen = [(setting, knobs.get(setting.knob)) for setting in settings]
    sites = {
        setting.knob: msgspec.convert(msgspec.to_builtins(knob.site), _PlainSite) for setting, knob in chosen
    }
    for setting, knob in chosen:
        if isinstance(knob.site, Env):
            env.pop(knob.site.name, None)
            if setting.value != UNSET:
                env[knob.site.name] = str(setting.value)
        elif isinstance(knob.site, Preload):
            env["LD_PRELOAD"] = _preloaded(str(setting.value), knob.site, env.get("LD_PRELOAD", ""))
            if not env["LD_PRELOAD"]:
                del env["LD_PRELOAD"]
    keys = {
        # The allocator accepts only True and False, capitalised.
        knob.site.key: str(setting.value)
        for setting, knob in chosen
        if isinstance(knob.site, AllocConf)
    }
    if keys:
        variable, other, conf = _merge_alloc_conf(env, keys, facts)
        env[variable] = conf
        env.pop(other, None)
        for key, text in keys.items():
            sites[f"alloc.{key}"] |= {"text": text, "variable": variable, "other": other, "conf": conf}
    if run_dir is not None:
        env["DYNOTUNE_RUN"] = str(run_dir)
        env["PYTHONPATH"] = _first_on_path(AGENT / "bootstrap", env.get("PYTHONPATH", ""))
    inside = [setting for setting, knob in chosen if not is_of_launch(knob.site)]
    return env, [PlannedSetting(setting.knob, _told(setting), sites[setting.knob]) for setting in inside]


def _told(setting: Setting) -> Scalar:
    """Return the value for the plan, which stays on disk: for a secret, the agent reads its environment
    instead."""
    is_secret = setting.value != UNSET and redaction.is_name(setting.knob)
    return redaction.MARK if is_secret else setting.value


def applied_inside(settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings that the agent applies in the process; all others change only the command or
    environment."""
    outside = (Env, AllocConf, Preload)
    sites = [(setting, knobs.get(setting.knob).site) for setting in settings]
    return [setting for setting, site in sites if not is_of_launch(site) and not isinstance(site, outside)]


def _refuse_conflicts(settings: Iterable[Setting]) -> None:
    seen: dict[str, Setting] = {}
    for setting in settings:
        site = knobs.get(setting.knob).site
        for name in (setting.knob, *_variables(site)):
            other = seen.setdefault(name, setting)
            # Keys of the allocator share one variable, so they are merged.
            merged = name in ALLOC_CONF_NAMES and isinstance(knobs.get(other.knob).site, AllocConf)
            if other is not setting and not (merged and isinstance(site, AllocConf)):
                raise UsageError(f"{other} and {setting} both set {name}.", hint="Give one of them.")


def _variables(site: Site) -> tuple[str, ...]:
    match site:
        case Env(name):
            return (name,)
        case AllocConf():
            return ALLOC_CONF_NAMES
        case Preload():
            return ("LD_PRELOAD",)
    return ()


def _first_on_path(folder: Path, path: str) -> str:
    """Put `folder` at the front of `path` exactly once, since a dynotune run by dynotune inherits the
    path."""
    entries = [entry for entry in path.split(":") if entry != str(folder)] if path else []
    return ":".join([str(folder), *entries])


def _merge_alloc_conf(env: Mapping[str, str], keys: dict[str, str], facts: Facts) -> tuple[str, str, str]:
    """Return the variable to set, the variable to remove, and the existing configuration with `keys`
    appended."""
    old, new = ALLOC_CONF_NAMES
    if env.get(old) and env.get(new) and split_alloc_conf(env[old]) != split_alloc_conf(env[new]):
        raise CannotRunHere(
            f"{old} and {new} are both set to different values: which of the two torch uses depends on "
            "its version.",
            hint=f"Unset one of them; they are two names of one variable, and {new} is the newer.",
        )
    merged = split_alloc_conf(env.get(new) or env.get(old) or "") | keys
    conf = ",".join(f"{key}:{value}" for key, value in merged.items())
    # Every torch version reads the old name. The new name works for CUDA from 2.10 on (2.9 reads it but
    # ignores expandable_segments), and until 2.11 the old name prints a warning.
    version = facts.get("torch.version")
    is_new = isinstance(version, str) and _numbers(version) >= (2, 10)
    return (new, old, conf) if is_new else (old, new, conf)


def _numbers(version: str) -> tuple[int, ...]:
    major, _, rest = version.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else ()


def split_alloc_conf(conf: str) -> dict[str, str]:
    """Split `a:1,b:[2:3,4:5]` into a map of key to text; a key without a value stays, for torch to judge."""
    items, depth, item = [], 0, ""
    for char in "".join(conf.split()):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            items.append(item)
            item = ""
        else:
            item += char
    pairs = (entry.partition(":") for entry in [*items, item] if entry)
    return {key: value for key, _, value in pairs}


def _preloaded(choice: str, site: Preload, before: str) -> str:
    """Return LD_PRELOAD with the chosen library first and without other allocators."""
    families = [library.partition(".so")[0] + ".so" for names in site.libraries.values() for library in names]
    rest = [
        entry
        for entry in before.replace(" ", ":").split(":")
        if entry and not Path(entry).name.startswith(tuple(families))
    ]
    if choice not in site.libraries:
        return ":".join(rest)
    path = find_library(site.libraries[choice])
    if path is None:
        raise CannotRunHere(
            f"{choice} is not installed: none of {', '.join(site.libraries[choice])} was found.",
            hint=f"Install it (on Debian and Ubuntu the packages are libjemalloc2 and libgoogle-perftools4), "
            f"or leave host.malloc={choice} out.",
        )
    return ":".join([str(path), *rest])


def find_library(names: Sequence[str]) -> Path | None:
    """Return the first of `names` that this architecture's dynamic linker would find, or None."""
    cache = _linker_cache()
    folders = [Path(folder) for folder in _library_folders()]
    for name in names:
        for path in (cache.get(name), *(folder / name for folder in folders)):
            if path is not None and path.is_file():
                return path
    return None


def _linker_cache() -> dict[str, Path]:
    word = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(platform.machine(), "")
    for ldconfig in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            listing = subprocess.run(
                [ldconfig, "-p"], check=False, capture_output=True, text=True, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        found: dict[str, Path] = {}
        for line in listing.stdout.splitlines():
            description, arrow, path = line.strip().partition(" => ")
            if arrow and word in description:
                found.setdefault(description.split()[0], Path(path))
        return found
    return {}


def _library_folders() -> tuple[str, ...]:
    triplet = f"{platform.machine()}-linux-gnu"
    return (
        f"/usr/lib/{triplet}",
        f"/lib/{triplet}",
        "/usr/local/lib",
        "/usr/lib64",
        "/usr/lib",
        "/lib64",
        "/lib",
    )
