"""Report the options that the program itself parses: by argparse (Transformers' parser, too), click, typer,
or Hydra.

Only parsing of the program's own command line counts. Values are text. Options that are named as secrets are
left out, and the record redacts secrets that it knows by their form.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import sys

from ..core.covers import covers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ..core.annotations import Event, Log
    from ..core.hooks import AfterImport

    Row = dict[str, Any]

MOST_OPTIONS, LONGEST_VALUE, LONGEST_HELP = 400, 200, 160
MOST_EVENTS = 8  # a parser with subcommands parses once for each of them
PROBE = "x7Qz-no-secret-4711"  # a value that is redacted beside a secret's name only
CLICKS = {"click.core": "click", "typer._click.core": "typer"}


class ProgramOptions:
    """Write an event `options` each time the program has parsed its command line.

    `redact`: redacts secrets in JSON text, as the record does.
    """

    def __init__(self, event: Event, redact: Callable[[str], str], log: Log) -> None:
        self._event, self._redact, self._log = event, redact, log
        self._num_events = 0
        self._by_cli: list[Any] = []  # configurations that OmegaConf made of the command line

    def install(self, hooks: AfterImport) -> None:
        hooks.call("argparse", self._cover_argparse)
        for module, name in CLICKS.items():
            hooks.call(module, functools.partial(self._cover_click, parser=name))
        hooks.call("hydra.core.utils", self._cover_hydra)
        hooks.call("omegaconf", self._cover_omegaconf)

    def _cover_argparse(self, argparse: Any) -> None:
        original = argparse.ArgumentParser.parse_known_args

        @covers(argparse.ArgumentParser, "parse_known_args")
        def parse_known_args(parser: Any, args: Any = None, namespace: Any = None) -> Any:
            found = original(parser, args, namespace)
            if _is_command_line(args):
                self._tell("argparse", lambda: of_argparse(parser, found[0], argparse.SUPPRESS))
            return found

    def _cover_click(self, core: Any, parser: str) -> None:
        original = core.Command.make_context

        @covers(core.Command, "make_context")
        def make_context(command: Any, *args: Any, **kwargs: Any) -> Any:
            context = original(command, *args, **kwargs)
            self._tell(parser, lambda: of_click(command, context))
            return context

    def _cover_hydra(self, utils: Any) -> None:
        original = utils.run_job

        @covers(utils, "run_job")
        def run_job(*args: Any, **kwargs: Any) -> Any:
            config = kwargs.get("config", args[1] if len(args) > 1 else None)
            self._tell("hydra", lambda: of_config(config))
            return original(*args, **kwargs)

    def _cover_omegaconf(self, omegaconf: Any) -> None:
        from_cli, merge = omegaconf.OmegaConf.from_cli, omegaconf.OmegaConf.merge

        @covers(omegaconf.OmegaConf, "from_cli")
        def typed(*args: Any, **kwargs: Any) -> Any:
            config = from_cli(*args, **kwargs)
            self._by_cli.append(config)
            return config

        @covers(omegaconf.OmegaConf, "merge")
        def merged(*configs: Any) -> Any:
            config = merge(*configs)
            if any(one is each for one in configs for each in self._by_cli):
                self._tell("omegaconf", lambda: of_config(config))
            return config

    def _tell(self, parser: str, options: Callable[[], Iterable[Row]]) -> None:
        if self._num_events >= MOST_EVENTS:
            return
        try:
            rows = [row for row in itertools.islice(options(), MOST_OPTIONS) if not self._is_secret(row)]
            if rows:
                self._num_events += 1
                self._event({"event": "options", "parser": parser, "options": rows})
        except Exception as error:  # the program has its options all the same
            self._log("options", error)

    def _is_secret(self, row: Row) -> bool:
        """Tell whether the record would redact the option's value because of one of the option's names."""
        return any(self._redact(text) != text for flag in row["flags"] for text in _with_probe(flag))


def _with_probe(flag: str) -> tuple[str, str]:
    name = flag.lstrip("-")
    return json.dumps(["--" + name, PROBE]), json.dumps({name: PROBE})


def of_argparse(parser: Any, namespace: Any, suppressed: str) -> Iterator[Row]:
    for action in list(parser._actions):
        flags = [str(flag) for flag in action.option_strings]
        if not flags or not hasattr(namespace, action.dest):
            continue
        is_switch = action.nargs == 0
        const = action.const if action.const is not None or not is_switch else True
        default = None if action.default is suppressed else action.default
        help_text = "" if action.help is suppressed else action.help
        yield option(
            flags,
            getattr(namespace, action.dest),
            default,
            const=const if is_switch or action.nargs == "?" else None,
            choices=action.choices,
            help_text=help_text,
        )


def of_click(command: Any, context: Any) -> Iterator[Row]:
    for parameter in list(command.params):
        flags = [*map(str, parameter.opts), *map(str, parameter.secondary_opts)]
        if parameter.param_type_name != "option" or parameter.name not in context.params:
            continue
        const = True if getattr(parameter, "is_flag", False) else None
        default = getattr(parameter, "default", None)
        default = None if callable(default) else default
        choices = getattr(getattr(parameter, "type", None), "choices", None)
        help_text = getattr(parameter, "help", None)
        value = context.params[parameter.name]
        yield option(flags, value, default, const=const, choices=choices, help_text=help_text)


def of_config(config: Any) -> Iterator[Row]:
    """Yield the leaves of a configuration whose command line overrides them as `name=value`."""
    omegaconf = sys.modules["omegaconf"]
    for name, value in _leaves("", omegaconf.OmegaConf.to_container(config, resolve=False)):
        if not name.startswith("hydra."):
            yield option([name], value, None)


def option(
    flags: list[str],
    value: Any,
    default: Any,
    *,
    const: Any = None,
    choices: Any = None,
    help_text: Any = None,
) -> Row:
    """Write one option. `const`: its value if it is given without one; None if it takes a value."""
    return {
        "name": max(
            flags, key=lambda flag: (flag.startswith("--") and not flag.startswith("--no-"), len(flag))
        ),
        "value": _text(value),
        "default": _text(default),
        "const": _text(const),
        "flags": flags,
        "choices": [str(_text(choice)) for choice in list(choices or ())[:50]],
        "help": str(help_text or "")[:LONGEST_HELP],
    }


def _text(value: Any) -> str | None:
    if isinstance(value, enum.Enum):
        value = value.value
    return None if value is None else str(value)[:LONGEST_VALUE]


def _leaves(prefix: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        yield prefix, tree
        return
    for key, value in tree.items():
        yield from _leaves("%s.%s" % (prefix, key) if prefix else str(key), value)


def _is_command_line(args: Any) -> bool:
    """Tell whether a parser reads the program's command line, or the end of it, as parsers of subcommands
    do."""
    if args is None:
        return True
    words = list(args)
    return words == sys.argv[len(sys.argv) - len(words) :]
