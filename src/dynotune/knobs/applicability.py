"""Tell whether a setting can work on this machine, and whether it is likely to hurt there."""

from dynotune.knobs.catalogue import get
from dynotune.schema.errors import CannotRunHere
from dynotune.schema.facts import Facts, Unknown
from dynotune.schema.knob import Knob
from dynotune.schema.setting import Setting


class DoesNotApply(CannotRunHere):
    """A setting cannot work here. `why`: the reason, a clause without a full stop."""

    def __init__(self, setting: Setting, why: str, *, hint: str) -> None:
        super().__init__(f"{setting} cannot work here: {why}.", hint=hint)
        self.why = why


def needs_workers(setting: Setting) -> bool:
    """Return whether a setting needs loader workers to have a meaning; false for switching persistent workers
    off."""
    return get(setting.knob).needs_workers and setting.value is not False


def check_applies(setting: Setting, facts: Facts) -> None:
    """Refuse a setting that cannot work here. If a fact is not known, the read-back decides later.

    Raises DoesNotApply: the reason names what is missing.
    """
    knob = get(setting.knob)
    if "gpu.count" in knob.needs and "torch.cuda" in facts and facts["torch.cuda"] is None:
        raise DoesNotApply(
            setting,
            "the command's torch is built without CUDA",
            hint="Install a CUDA build of torch in the command's environment, or leave this setting out.",
        )
    _check_package(setting, knob, facts)
    if knob.applies is None or any(_is_unknown(facts, need) for need in knob.needs):
        return
    if not knob.applies(facts):
        found = ", ".join(f"{need} is {facts[need]}" for need in knob.needs)
        raise DoesNotApply(
            setting,
            f"{knob.unless} ({found})",
            hint=f"Leave it out, or run where it applies. `dynotune knobs {knob.id}` says more.",
        )


def _check_package(setting: Setting, knob: Knob, facts: Facts) -> None:
    needed = knob.packages.get(str(setting.value), ())
    if not needed or "python.version" not in facts or _is_unknown(facts, "python.version"):
        return  # the installed packages are not known
    there = [name.removeprefix("package.") for name in facts if name.startswith("package.")]
    if not any(one in (name, f"{name}-headless") for name in needed for one in there):
        missing = " or ".join(needed)
        raise DoesNotApply(
            setting,
            f"{missing} is not installed in the command's environment",
            hint="Install it there, or leave this setting out.",
        )


def _is_unknown(facts: Facts, name: str) -> bool:
    return name not in facts or isinstance(facts[name], Unknown)


def caution(setting: Setting, facts: Facts) -> str:
    """Return a warning about a setting that works here but is likely to hurt; "" if there is no such risk."""
    cores = facts.get("host.num_cores")
    if isinstance(cores, bool) or not isinstance(cores, int) or isinstance(setting.value, str):
        return ""
    sharing = get(setting.knob).takes_cores
    if not sharing or setting.value <= cores:
        return ""
    return f"{setting}: {sharing} will share cores, since this process may use only {cores}."
