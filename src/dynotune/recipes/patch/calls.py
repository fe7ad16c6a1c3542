"""Find calls by what they call, and set their arguments."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from dynotune.recipes.patch.source import NoPlace, SourceFile

POSITIONS = {
    "torch.utils.data.DataLoader": {"num_workers": 5, "pin_memory": 7, "multiprocessing_context": 11},
}
"""Positions of the arguments that may be passed by position, by the dotted path of what is called."""
_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))


def calls_of(file: SourceFile, targets: Collection[str]) -> Iterator[tuple[cst.Call, str]]:
    """Yield each call of one of the targets, in the order of the text, with the target.

    Targets are dotted paths. A class is known by each path below its package: `torch.optim.adamw.AdamW` is
    `torch.optim.AdamW`.
    """
    for call in file.calls():
        if target := target_of(file, call.func, targets):
            yield call, target


def target_of(file: SourceFile, node: cst.CSTNode, targets: Collection[str]) -> str:
    """Return the target that a name means; "" for any other name.

    Raises NoPlace: the program binds the name to something else, too.
    """
    names = file.qualified(node)
    meant = {_target(name, targets) for name in names}
    if len(meant) > 1 and (target := "".join(sorted(meant, key=len)[-1:])):
        raise NoPlace(f"{file.place(node)}: {file.code(node)} may be another one than {target}")
    return meant.pop() if meant else ""


def _target(name: str, targets: Collection[str]) -> str:
    for target in targets:
        package, _, last = target.rpartition(".")
        if name == target or (name.startswith(f"{package}.") and name.endswith(f".{last}")):
            return target
    return ""


def refuse_indirect(file: SourceFile, targets: Collection[str]) -> None:
    """Raise NoPlace where a target is called in a way whose arguments cannot be seen here."""
    for node in file.nodes:
        if isinstance(node, cst.ClassDef):
            for base in node.bases:
                if target := target_of(file, base.value, targets):
                    raise NoPlace(f"{file.place(node)}: {node.name.value} derives from {_last(target)}")
        if not isinstance(node, cst.Call):
            continue
        is_partial = bool(file.qualified(node.func) & {"functools.partial"} and node.args)
        if is_partial and (target := target_of(file, node.args[0].value, targets)):
            raise NoPlace(f"{file.place(node)}: {_last(target)} is called through functools.partial")


def argument_of(file: SourceFile, call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """Return an argument as it is written; None if it is not passed.

    Raises NoPlace: it may be passed by *args or **kwargs.
    """
    arg = _found(call, name, position)
    if arg is not None and arg.star:
        raise NoPlace(
            f"{file.place(call)}: {_short(file, call)} gets arguments by `{arg.star}"
            f"{file.code(arg.value)}`, which may hold {name}"
        )
    return arg


def _found(call: cst.Call, name: str, position: int | None) -> cst.Arg | None:
    """Return an argument as it is written, or the *args or **kwargs that may hold it."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == name:
            return arg
    for index, arg in enumerate(call.args):
        if arg.star == "**" or (arg.star == "*" and position is not None):
            return arg
        if index == position and arg.keyword is None:
            return arg
    return None


def is_passed_as(
    file: SourceFile, call: cst.Call, name: str, position: int | None, other: SourceFile, node: cst.CSTNode
) -> bool:
    """Tell whether the call `call` passes `node`, in the file `other`, as this argument."""
    arg = next(other.above(node))
    outer = next(other.above(arg))
    if not isinstance(arg, cst.Arg) or not isinstance(outer, cst.Call) or arg.star:
        return False
    is_called = outer is call or bool(other.qualified(outer.func) & file.qualified(call.func))
    return is_called and _found(outer, name, position) is arg


def set_argument(
    file: SourceFile, call: cst.Call, name: str, value: str, position: int | None = None
) -> None:
    """Ask for an edit: the call passes `value`, a text of Python, as the argument `name`.

    Raises NoPlace: as `argument_of`.
    """
    argument_of(file, call, name, position)
    # An earlier setting may have edited this call, and added the argument.
    current = file.edits.replaced.get(call, call)
    assert isinstance(current, cst.Call)
    old = _found(current, name, position)
    new = cst.parse_expression(value)
    if old is not None:
        args = [arg.with_changes(value=new) if arg is old else arg for arg in current.args]
    else:
        args = _appended(current, cst.Arg(new, cst.Name(name), equal=_EQUAL))
    file.edits.replaced[call] = current.with_changes(args=args)


def _appended(call: cst.Call, arg: cst.Arg) -> list[cst.Arg]:
    """Append an argument in the style of the others: on its own line where they are.

    A comment at the end of a line stays there.
    """
    if not call.args:
        return [arg]
    *others, last = call.args
    between = _between(call)
    comma = last.comma
    if isinstance(comma, cst.Comma):
        # The space behind the last comma leads to the closing parenthesis.
        tail = comma.whitespace_after
        behind = comma.with_changes(whitespace_after=_with_comment_of(tail, between))
        return [
            *others,
            last.with_changes(comma=behind),
            arg.with_changes(comma=comma.with_changes(whitespace_after=_plain(tail))),
        ]
    tail = last.whitespace_after_arg
    between = _with_comment_of(tail, between)
    return [
        *others,
        last.with_changes(
            comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
        ),
        arg.with_changes(whitespace_after_arg=_plain(tail)),
    ]


def _between(call: cst.Call) -> cst.BaseParenthesizableWhitespace:
    """Return the space between two arguments of a call."""
    gap = call.args[-2].comma if len(call.args) > 1 else None
    if isinstance(gap, cst.Comma):
        return _plain(gap.whitespace_after)
    is_own_line = isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace)
    return _plain(call.whitespace_before_args) if is_own_line else cst.SimpleWhitespace(" ")


def _plain(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """Return the space without comments and empty lines."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    first = space.first_line.with_changes(whitespace=cst.SimpleWhitespace(""), comment=None)
    return space.with_changes(first_line=first, empty_lines=[])


def _with_comment_of(
    tail: cst.BaseParenthesizableWhitespace, between: cst.BaseParenthesizableWhitespace
) -> cst.BaseParenthesizableWhitespace:
    """Return `between` as the space behind an argument that `tail` followed, whose comment it keeps."""
    if not isinstance(tail, cst.ParenthesizedWhitespace):
        return between
    if not isinstance(between, cst.ParenthesizedWhitespace):
        return tail if tail.first_line.comment is not None else between
    return tail.with_changes(indent=between.indent, last_line=between.last_line)


def _last(target: str) -> str:
    return target.rpartition(".")[2]


def _short(file: SourceFile, call: cst.Call) -> str:
    return f"{file.code(call.func)}(…)"
