"""Write each setting of a recipe in the form that tools other than dynotune take."""

from collections.abc import Sequence
from pathlib import Path

from dynotune import knobs
from dynotune.launch.process import environment, variants
from dynotune.report import export as formats
from dynotune.schema import redaction
from dynotune.schema.knob import (
    AllocConf,
    Attr,
    Call,
    Constructor,
    Env,
    Knob,
    Library,
    Method,
    Module,
    Preload,
    by_value,
)
from dynotune.schema.recipe import Recipe
from dynotune.schema.setting import UNSET, Setting

LARGEST_SHM_BYTES = 16 << 30
"""The shared memory that the doctor advises for a container. Users must ask for more themselves."""


def export_parts(
    recipe: Recipe,
    settings: Sequence[Setting],
    name: str,
    shm_size: str | None = None,
    *,
    left_out: Sequence[Setting] = (),
) -> formats.Parts:
    """Group the settings by the means that apply them: variables, code, commands and so on.

    Args:
        settings: checked settings of `recipe`. `left_out`: its remaining settings, which are listed in
            comments only.
        name: file name of the recipe.
        shm_size: size that the user gave, in Kubernetes' notation.

    Raises:
        UsageError: two settings set the same variable or option.
    """
    chosen = [(setting, knobs.get(setting.knob)) for setting in settings]
    size, why = _shm(recipe, settings, shm_size)
    device = "cpu" if recipe.facts.get("gpu_count") == 0 else "cuda"
    head = recipe.recipe
    told: dict[str, str] = {
        each: str(recipe.facts[each]) for each in ("gpu", "driver", "torch", "cpu") if each in recipe.facts
    }
    variables = _variables(recipe, chosen)
    secret = [
        name
        for name, value in variables.items()
        if redaction.is_name(name) or redaction.redacted(value) != value
    ]
    code = {str(setting): _code(setting, knob, device) for setting, knob in chosen}
    return formats.Parts(
        recipe=name,
        about=formats.about(head.speedup, head.ci, head.objective, told),
        command=redaction.words(
            variants.variant(head.command, {}, knobs.of_launch(settings), Path()).command
        ),
        # A value with line ends would break out of a comment.
        typed=[
            redaction.redacted(text).replace(redaction.MARK, "VALUE")
            for text in map(str, knobs.check(settings).left_out)
            if text.isprintable()
        ],
        left_out=[knobs.how_to_type(one) for one in left_out],
        variables={name: value for name, value in variables.items() if name not in secret},
        secret=secret,
        preload=[
            knob.site.libraries[str(setting.value)][0]
            for setting, knob in chosen
            if isinstance(knob.site, Preload) and setting.value in knob.site.libraries
        ],
        unset=[
            knob.site.name
            for setting, knob in chosen
            if isinstance(knob.site, Env) and setting.value == UNSET
        ],
        code={setting: line for setting, line in code.items() if line},
        beside={str(setting): text for setting, knob in chosen if (text := _beside(setting, knob))},
        shm_size=size,
        shm_why=why,
    )


def _variables(recipe: Recipe, chosen: Sequence[tuple[Setting, Knob]]) -> dict[str, str]:
    """Return the environment variables that a run with these settings adds to an empty environment."""
    asked = [setting for setting, knob in chosen if not isinstance(knob.site, Preload)]
    torch = recipe.facts.get("torch")
    env, _ = environment.build(
        asked, {}, run_dir=Path("/"), facts={} if torch is None else {"torch.version": torch}
    )
    return {name: value for name, value in env.items() if name not in ("DYNOTUNE_RUN", "PYTHONPATH")}


def _code(setting: Setting, knob: Knob, device: str) -> str:
    """Return the Python line that applies a setting; "" for a setting that is applied before Python
    starts."""
    value = setting.value
    match knob.site:
        case Attr(path):
            return f"{path} = {value!r}"
        case Call(setter, _):
            return f"{setter}({value!r})"
        case Constructor(targets, argument) | Method(targets, argument):
            first, *others = (target.rpartition(".")[2] for target in targets)
            dot = "." if isinstance(knob.site, Method) else ""
            return f"{dot}{first}(..., {argument}={value!r})" + (
                f"  # or {', '.join(others)}" if others else ""
            )
        case Module() | Library():
            return by_value(knob.python, value).format(device=device, value=value)
    return ""


def _beside(setting: Setting, knob: Knob) -> str:
    match knob.site:
        case AllocConf():
            return (
                "this replaces a configuration of the allocator that is set already; dynotune run "
                "merges them."
            )
        case Preload(libraries) if setting.value not in libraries:
            return "preload nothing; take other allocators out of LD_PRELOAD."
        case Library() if not knob.python:
            return "no line of code does it: dynotune run applies it."
        case Preload():
            return (
                "the library must be installed (on Debian and Ubuntu, libjemalloc2 or libgoogle-perftools4)."
            )
    return ""


def _shm(recipe: Recipe, settings: Sequence[Setting], given: str | None) -> tuple[str, str]:
    """Return the size of shared memory for loader workers, and the size's source; "" without known
    workers."""
    workers = next((setting.value for setting in settings if setting.knob == "loader.num_workers"), None)
    if workers == 0 or (
        workers is None and not any(knobs.get(setting.knob).needs_workers for setting in settings)
    ):
        return "", ""
    if given is not None:
        return given, "as given"
    there = recipe.facts.get("shm_bytes")
    if isinstance(there, int) and not isinstance(there, bool) and 0 < there <= LARGEST_SHM_BYTES:
        return f"{-(-there // 2**20)}Mi", "as where it was proved; --shm-size sets another"
    return "16Gi", "a limit, not an allocation; --shm-size sets another"
