"""Knobs: what can be set, where a knob is set, what a knob may change, and where it is documented."""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from dynotune.schema.facts import Facts
from dynotune.schema.program_options import OptionMeaning

When = Literal["process", "before_cuda", "construct", "any"]
Effect = Literal["exact", "sampling", "numerics", "semantics", "system"]
Scalar = bool | int | float | str
WITHOUT_ROUNDING: tuple[Effect, ...] = ("exact", "sampling")
"""Effects of settings that neither round otherwise nor change what the program computes."""
ANY_VALUE = "any"
"""In a table by value, the key that serves every value without a key of its own."""
OWN_VALUES = "values"


class Env(msgspec.Struct, frozen=True, tag="env"):
    """Site of a knob: an environment variable, set before the process starts."""

    name: str


class AllocConf(msgspec.Struct, frozen=True, tag="alloc_conf"):
    """Site of a knob: a key of PYTORCH_ALLOC_CONF, merged with the keys that are already set."""

    key: str


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """A shared library put first in LD_PRELOAD; the value names the library, `libraries` lists where it may
    be."""

    libraries: dict[str, tuple[str, ...]]


class Attr(msgspec.Struct, frozen=True, tag="attr"):
    """Site of a knob: an attribute of a Python module, by its dotted path."""

    path: str


class Call(msgspec.Struct, frozen=True, tag="call"):
    """Site of a knob: a setter and a getter, by their dotted paths. The setter takes the value alone."""

    set: str
    get: str


class Constructor(msgspec.Struct, frozen=True, tag="constructor"):
    """Site of a knob: an argument of some classes' constructors, by the dotted paths of the classes."""

    targets: tuple[str, ...]
    argument: str


class Method(msgspec.Struct, frozen=True, tag="method"):
    """Site of a knob: an argument of some methods (by dotted path), passed if the agent's guard allows the
    change."""

    targets: tuple[str, ...]
    argument: str


class Module(msgspec.Struct, frozen=True, tag="module"):
    """Site of a knob: a change of the outermost module at its first call; `action`: the change's name in the
    agent."""

    action: str


class Library(msgspec.Struct, frozen=True, tag="library"):
    """Site of a knob: a change of functions of imported libraries; `action`: the change's name in the
    agent."""

    action: str


class Argument(msgspec.Struct, frozen=True, tag="argument"):
    """Site of a knob: a placeholder `{name}` in the command, filled in before the command is started."""

    name: str


class Revision(msgspec.Struct, frozen=True, tag="revision"):
    """Site of a knob: the git revision of the repository that the command sees."""


class Interpreter(msgspec.Struct, frozen=True, tag="interpreter"):
    """Site of a knob: the Python interpreter that runs the command."""


InProcess = Attr | Call | Constructor | Method | Module | Library
Site = Env | AllocConf | Preload | InProcess | Argument | Revision | Interpreter


def is_of_launch(site: Site) -> bool:
    """Return whether a setting at this site changes how the command is started, not the state inside its
    process."""
    return isinstance(site, Argument | Revision | Interpreter)


def spelled(value: Scalar) -> str:
    """Return a value as it is typed behind `knob=`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def by_value(table: Mapping[str, str], value: Scalar) -> str:
    """Return the entry of a value in one of a knob's tables; "" if the table has none."""
    return table.get(spelled(value), table.get(ANY_VALUE, ""))


class TrainerArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An argument of a trainer that does what a setting does.

    Args:
        argument: the argument's name.
        values: by value of the setting, the text of Python that is passed; empty if the text is the value.
        replaces: values that the argument may have had; the setting must not change another choice. Empty if
            the setting may replace any.
        beside: arguments beside which the trainer refuses this one, unless they are off.
        needs: arguments without which the trainer refuses this one, by the knobs that set them.
    """

    argument: str
    values: dict[str, str] = {}
    replaces: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    needs: dict[str, str] = {}


class Knob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A knob, a parameter to which a setting gives a value, with all that is known of it: an entry of
    catalogue.toml.

    Args:
        id: dotted name, family first. In the file, the name of the entry.
        site: where the knob is set and read back.
        type: type of the knob's values.
        values: the accepted values; empty if every value of the type is accepted.
        minimum, maximum: smallest and largest number allowed.
        tries: numbers worth trying if the user names the knob without a value; empty if `values` or the
            machine's cores give them.
        words: words that people type for the knob, and the value that each means.
        default: as text, the behaviour if nobody sets the knob.
        when: latest time at which setting the knob still works.
        effect: what the knob may change besides speed.
        rounding: how far a setting may move results, as the name of a tolerance in
            `measure/checks/tolerance.toml`: one for all values, or a table by value. Empty if `effect` is not
            `numerics`.
        redraws: whether kernels may draw other random numbers from the same seed.
        only_on: name of the condition, in `knobs/conditions.py`, that the machine has to meet. The next three
            fields are made from it.
        needs: names of the facts that `applies` reads.
        applies: function that returns whether the knob can matter here; called only if all of `needs` are
            known.
        unless: as text, why the knob does not apply if `applies` returns False.
        packages: by value, the alternative packages of which one must be installed (`-headless` may follow
            the name).
        needs_workers: whether the knob has a meaning only for a loader with workers.
        takes_cores: what takes turns if it outnumbers the cores: `workers` may wait and so exceed them,
            `threads` may not; "" if the value is no number of either.
        only_loading: whether the knob changes when batches are ready, but not the work of making them.
        compiles: whether a value compiles the model, so that arms with it start slowly.
        from_elsewhere: values that may come from elsewhere, such as a recipe or a project's file: `values`
            for all that the knob accepts, or a pattern for the text. "" if only the user may set the knob,
            because a value could load foreign code.
        doc: one or two sentences on the effect of the knob.
        hurts: when the knob makes a program worse, or its pitfalls; may be empty.
        live_fact: what shows the knob's value in a live process: `live.NAME` is a fact, `loaders.NAME`,
            `optimizers.NAME` and `models.NAME` are a field of each of these, and `compilation.modes` the
            modes of compiled models; "" if nothing shows it.
        live_values: the knob's value by the text of what was seen (`none` for None, `nothing` for an empty
            list); empty if the two are the same.
        not_switched: why the knob cannot be switched while a program runs; "" if possible, or if `when` is
            the reason.
        python: by value, the line of Python that does the same, for a site that is no attribute, setter or
            argument. {value} is the value, {device} is cuda or cpu.
        overruled_by: attributes of torch that overrule a setting where the program sets them later.
        own_option: the names that a program's own option for this knob may have.
        trainers: by class, the argument of a trainer that does the same.
        source: where the knob is documented.
    """

    id: str = ""
    site: Site
    type: Literal["bool", "int", "float", "str"]
    values: tuple[Scalar, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    tries: tuple[Scalar, ...] = ()
    words: dict[str, Scalar] = {}
    default: str
    when: When
    effect: Effect
    rounding: str | dict[str, str] = ""
    redraws: bool = False
    only_on: str = ""
    needs: tuple[str, ...] = ()
    applies: Callable[[Facts], bool] | None = None
    unless: str = ""
    packages: dict[str, tuple[str, ...]] = {}
    needs_workers: bool = False
    takes_cores: Literal["", "workers", "threads"] = ""
    only_loading: bool = False
    compiles: bool = False
    from_elsewhere: str = ""
    doc: str
    hurts: str = ""
    live_fact: str = ""
    live_values: dict[str, Scalar] = {}
    not_switched: str = ""
    python: dict[str, str] = {}
    overruled_by: tuple[str, ...] = ()
    own_option: OptionMeaning | None = None
    trainers: dict[str, TrainerArgument] = {}
    source: str

    def rounding_of(self, value: Scalar) -> str:
        """Return the name of the tolerance for a value; "" if the value does not round."""
        return self.rounding if isinstance(self.rounding, str) else by_value(self.rounding, value)
