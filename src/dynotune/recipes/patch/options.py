"""Follow a value to where the program takes it from: the default of an option, or a configuration file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

import libcst as cst

from dynotune.recipes.patch.calls import argument_of, set_argument
from dynotune.recipes.patch.configuration import Configurations
from dynotune.recipes.patch.source import NoPlace, SourceFile, walk

IsSame = Callable[[SourceFile, cst.CSTNode], bool]
_SWITCHES = ("'store_true'", "'store_false'", '"store_true"', '"store_false"')


@dataclass
class Origins:
    """All places from which values of the program may come.

    Args:
        command: the command on which the recipe was proved.
    """

    files: Sequence[SourceFile]
    command: Sequence[str]
    configurations: Configurations

    def set(
        self, file: SourceFile, node: cst.BaseExpression, value: str, is_same: IsSame
    ) -> list[str] | None:
        """Set the origin of the expression `node` to `value`, a text of Python, and return the places.

        None means that the expression itself is to be replaced: it is no value of an option or of a
        configuration, or the value has other uses.

        Args:
            is_same: whether an expression of a file is used as `node` is.

        Raises NoPlace: the command line gives the option, so no edit of a file would act.
        """
        keys = _keys(node)
        if not keys:
            return None
        if self.configurations.has(keys):
            others = (use for use in self._uses(keys[-1], frozenset()) if not is_same(*use))
            if self.configurations.interpolates(keys[-1]) or any(others):
                return None
            return [self.configurations.set(keys, value)]
        if len(keys) > 1 or self._is_assigned(keys[0]):
            return None
        found = self._option(keys[0])
        if found is None:
            return None
        place, call = found
        is_click = "click.option" in place.qualified(call.func)
        if not all(is_same(*use) for use in self._uses(keys[0], set(walk(call)), with_names=is_click)):
            return None
        self._refuse_given(call, value)
        if (action := argument_of(place, call, "action")) is not None and (
            place.code(action.value) in _SWITCHES
        ):
            flag = place.code(call.args[0].value).strip("'\"")
            raise NoPlace(f"{place.place(call)}: the program has a switch for it: give or leave out `{flag}`")
        set_argument(place, call, "default", value)
        return [f"{place.place(call)}: {place.code(call)}: default={value}"]

    def _option(self, name: str) -> tuple[SourceFile, cst.Call] | None:
        """Return the one `add_argument` or `click.option` that makes the option `name`."""
        found = []
        for file in self.files:
            for call in file.calls():
                is_option = isinstance(call.func, cst.Attribute) and call.func.attr.value == "add_argument"
                if (is_option or "click.option" in file.qualified(call.func)) and name in _names(file, call):
                    found.append((file, call))
        return found[0] if len(found) == 1 else None

    def _is_assigned(self, name: str) -> bool:
        """Tell whether the program sets the attribute itself, such as `args.workers = …`."""
        return any(
            isinstance(node, cst.AssignTarget)
            and isinstance(node.target, cst.Attribute)
            and node.target.attr.value == name
            and isinstance(node.target.value, cst.Name)
            and node.target.value.value != "self"
            for file in self.files
            for node in file.nodes
        )

    def _uses(
        self, name: str, own: Set[cst.CSTNode], *, with_names: bool = False
    ) -> Iterator[tuple[SourceFile, cst.CSTNode]]:
        """Yield all that may read the value `name`.

        Args:
            own: nodes of the call that makes the option.
            with_names: whether a plain name may be the value, as click passes it.
        """
        for file in self.files:
            # Names of parameters, and of arguments that are passed, read nothing.
            bare = {node.name for node in file.nodes if isinstance(node, cst.Param)}
            bare |= {node.keyword for node in file.nodes if isinstance(node, cst.Arg) and node.keyword}
            bare |= {node.attr for node in file.nodes if isinstance(node, cst.Attribute)}
            for node in file.nodes:
                match node:
                    case cst.Attribute(attr=cst.Name(value=attr)) if attr == name:
                        yield file, node
                    case cst.Name(value=text) if with_names and text == name and node not in bare:
                        yield file, node
                    case cst.SimpleString() if node.evaluated_value == name and node not in own:
                        subscript = next(file.above(next(file.above(next(file.above(node))))))
                        yield file, subscript if isinstance(subscript, cst.Subscript) else node
                    case cst.Arg(star="**", value=cst.Call(func=cst.Name(value="vars"))):
                        yield file, node

    def _refuse_given(self, call: cst.Call, value: str) -> None:
        flags = _flags(call)
        others = {flag for file in self.files for each in file.calls() for flag in _flags(each)} - set(flags)
        for word in self.command:
            given, _, _ = word.partition("=")
            for flag in flags:
                is_long = flag.startswith("--")
                if (
                    given == flag
                    or (not is_long and word.startswith(flag) and not word.startswith("--"))
                    # A parser of argparse knows a long option by its first letters.
                    or (len(given) > 2 and flag.startswith(given) and is_long and given not in others)
                ):
                    raise NoPlace(
                        f"the command gives `{given if is_long else flag}`: write {_shown(value)} there"
                    )


def _flags(call: cst.Call) -> list[str]:
    return [flag for arg in call.args if (flag := _text(arg)).startswith("-")]


def _keys(node: cst.BaseExpression) -> list[str]:
    """Return `[loader, workers]` of `cfg.loader.workers` or `cfg["loader"]["workers"]`; [] of others."""
    keys: list[str] = []
    while isinstance(node, cst.Attribute | cst.Subscript):
        if isinstance(node, cst.Attribute):
            keys.append(node.attr.value)
        else:
            index = node.slice[0].slice if len(node.slice) == 1 else None
            if not isinstance(index, cst.Index) or not isinstance(index.value, cst.SimpleString):
                return []
            keys.append(str(index.value.evaluated_value))
        node = node.value
    if not isinstance(node, cst.Name) or node.value == "self":
        return []
    return keys[::-1]


def _names(file: SourceFile, call: cst.Call) -> set[str]:
    """Return the name under which a parser keeps an option: `dest`, else that of the first long flag."""
    for arg in call.args:
        if arg.star:
            return set()
        if arg.keyword is not None and arg.keyword.value == "dest":
            return {_text(arg)}
    flags = [_text(arg) for arg in call.args if arg.keyword is None]
    long = [flag for flag in flags if flag.startswith("--")] or flags
    return {long[0].lstrip("-").replace("-", "_")} if long and long[0] else set()


def _text(arg: cst.Arg) -> str:
    value = arg.value
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else ""


def _shown(value: str) -> str:
    return value.strip("'\"")
