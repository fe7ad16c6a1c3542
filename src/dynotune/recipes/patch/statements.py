"""Put statements where they act: before what reads an environment variable, after imports, around a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from dynotune.recipes.patch.calls import calls_of
from dynotune.recipes.patch.source import NoPlace, SourceFile, Statement, line, walk

OPTIMIZERS = tuple(
    f"torch.optim.{name}"
    for name in ("Adam", "AdamW", "SGD", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop")
)


def after_imports(file: SourceFile, code: str) -> str:
    """Ask for a statement after the imports of the file, with `import torch` where it lacks one."""
    binding, last = file.binding("torch"), file.last_import()
    if binding is not None and (last is None or file.runs_before(last, binding)):
        last = binding
    imports = ["import torch"] if binding is None else []
    if last is not None:
        _add(file.edits.after.setdefault(last, []), imports, [code])
        return f"{file.place(last)}: {code}"
    return _at_begin(file, imports, code)


def set_variable(file: SourceFile, name: str, value: str) -> str:
    """Ask for a line that sets an environment variable before the first import of the file."""
    code = f"os.environ[{name!r}] = {value!r}"
    first = _first_code(file)
    lines = file.edits.before.setdefault(first, [])
    others = [each for each in lines if not file.code(each).startswith(("import os", "os.environ"))]
    variables = [each for each in lines if each not in others]
    # An import of the patch may read a variable, too.
    _add(variables, ["import os"], [code])
    lines[:] = [*variables, *others]
    return f"{file.place(first)}: {code}"


def _at_begin(file: SourceFile, imports: Sequence[str], code: str) -> str:
    first = _first_code(file)
    _add(file.edits.before.setdefault(first, []), imports, [code] if code else [])
    return f"{file.place(first)}: {code}"


def _first_code(file: SourceFile) -> cst.CSTNode:
    first = file.first_code()
    if first is None:
        raise NoPlace(f"{file.name} has no statement")
    return first


def _add(lines: list[cst.SimpleStatementLine], imports: Sequence[str], codes: Sequence[str]) -> None:
    """Append statements, and imports that are not among the lines."""
    held = [cst.Module([each]).code.strip() for each in lines]
    lines += [line(code) for code in (*(code for code in imports if code not in held), *codes)]


def import_torch(file: SourceFile, node: cst.CSTNode) -> None:
    """Ask for `import torch` where no import of the file binds it before `node` runs."""
    binding, last = file.binding("torch"), file.last_import()
    if binding is not None and file.runs_before(binding, node):
        return
    if last is not None and file.runs_before(last, node):
        _add(file.edits.after.setdefault(last, []), ["import torch"], [])
    else:
        _at_begin(file, ["import torch"], "")


def model_of(files: Sequence[SourceFile]) -> tuple[SourceFile, cst.SimpleStatementLine, str, bool]:
    """Find the model: what an optimizer steps, else what is put into evaluation mode.

    Returns: the file, a statement at which the model is complete, the model's name as text, and whether
    the statement comes before that point.

    Raises NoPlace: there is no such statement, or there are several models.
    """
    found = list(_stepped(files))
    if not found and not any(b".backward(" in file.raw for file in files):
        found = list(_evaluated(files))
    names = {name for _, _, name, _ in found}
    if not found:
        raise NoPlace("no optimizer of torch and no `.eval()` names the model")
    if len(names) > 1 or len(found) > 1:
        places = ", ".join(f"{file.place(statement)} ({name})" for file, statement, name, _ in found)
        raise NoPlace(f"several statements name a model: {places}")
    if names == {"self"}:
        file, statement, _, _ = found[0]
        raise NoPlace(
            f"{file.place(statement)}: the model makes its own optimizer, and is called by a trainer"
        )
    return found[0]


def _stepped(files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, cst.SimpleStatementLine, str, bool]]:
    for file in files:
        for call, _ in calls_of(file, OPTIMIZERS):
            statement = file.statement(call)
            names = _with_parameters(file, call)
            if len(names) > 1:
                raise NoPlace(
                    f"{file.place(call)}: the optimizer steps several modules: {', '.join(sorted(names))}"
                )
            if not names or statement is None:
                raise NoPlace(f"{file.place(call)}: the optimizer does not name the model")
            yield file, statement, names.pop(), True


def _with_parameters(file: SourceFile, optimizer: cst.Call) -> set[str]:
    """Return all whose parameters an optimizer gets, as text, but for names that only its call binds."""
    calls = [
        each.func
        for arg in optimizer.args[:1]
        for each in walk(arg)
        if isinstance(each, cst.Call) and isinstance(each.func, cst.Attribute)
    ]
    found = [func.value for func in calls if func.attr.value in ("parameters", "named_parameters")]
    inner = [each.target for each in walk(optimizer) if isinstance(each, cst.CompFor)]
    bound = {name.value for target in inner for name in walk(target) if isinstance(name, cst.Name)}
    return {
        file.code(each)
        for each in found
        if not any(isinstance(name, cst.Name) and name.value in bound for name in walk(each))
    }


def _evaluated(
    files: Sequence[SourceFile],
) -> Iterator[tuple[SourceFile, cst.SimpleStatementLine, str, bool]]:
    for file in files:
        for call in file.calls():
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value != "eval" or call.args:
                continue
            statement = file.statement(call)
            if statement is None or len(statement.body) != 1:
                continue
            part = statement.body[0]
            if isinstance(part, cst.Expr) and part.value is call:
                yield file, statement, file.code(func.value), False
            elif isinstance(part, cst.Assign) and part.value is call and len(part.targets) == 1:
                yield file, statement, file.code(part.targets[0].target), False


def beside_model(file: SourceFile, statement: cst.CSTNode, code: str, *, is_before: bool) -> str:
    """Ask for a statement on the model, before its optimizer is made or after it is complete."""
    beside = file.edits.before if is_before else file.edits.after
    beside.setdefault(statement, []).append(line(code))
    return f"{file.place(statement)}: {code}"


def around_calls(files: Sequence[SourceFile], header: str, *, with_loss: bool) -> list[str]:
    """Ask for a `with` around each statement that calls the model.

    Args:
        with_loss: whether the statements up to the backward pass belong inside, where one follows in the
            same block.

    Raises NoPlace: a call stands in a statement that cannot be put inside, or there is no call.
    """
    home, _, name, _ = model_of(files)
    # The same name in another file is the model only where a function is given it.
    for file, calls in _calls_of_model(files, home, name):
        places: list[str] = []
        done = set[cst.CSTNode]()
        for call in calls:
            statement = file.statement(call)
            block = None if statement is None else file.block(statement)
            if statement is None or block is None:
                raise NoPlace(f"{file.place(call)}: the model is called where no `with` fits around the line")
            if statement in done:
                continue
            body = list(block.body)
            begin = body.index(statement)
            num = _to_backward(file, body[begin:]) if with_loss else 1
            if any(inner in file.edits.wrapped for inner in body[begin : begin + num]):
                raise NoPlace(f"{file.place(call)}: another setting puts a `with` around this line")
            done.update(body[begin : begin + num])
            file.edits.wrapped[statement] = (num, header)
            places.append(f"{file.place(statement)}: with {header}:")
        if places:
            for each in done:
                import_torch(file, each)
            return places
    raise NoPlace(f"no line of the program's files calls `{name}`")


def _calls_of_model(
    files: Sequence[SourceFile], home: SourceFile, name: str
) -> Iterator[tuple[SourceFile, list[cst.Call]]]:
    """Yield the calls of the model in the file where it is made, then those in functions that get it."""
    yield home, [call for call in home.calls() if home.code(call.func) == name]
    for file in files:
        if file is not home:
            calls = (call for call in file.calls() if file.code(call.func) == name)
            yield file, [call for call in calls if _is_parameter(file, call, name)]


def _is_parameter(file: SourceFile, node: cst.CSTNode, name: str) -> bool:
    """Tell whether the innermost function around a node has a parameter of this name."""
    function = next((above for above in file.above(node) if isinstance(above, cst.FunctionDef)), None)
    if function is None:
        return False
    return any(
        param.name.value == name for param in (*function.params.params, *function.params.kwonly_params)
    )


def _to_backward(file: SourceFile, body: Sequence[Statement | cst.BaseSmallStatement | cst.CSTNode]) -> int:
    """Return how many statements stand before the one that begins the backward pass; 1 if none does."""
    for num, statement in enumerate(body):
        code = file.code(statement)
        if num and not isinstance(statement, cst.SimpleStatementLine):
            break
        if num and (".backward(" in code or ".zero_grad(" in code or ".step(" in code):
            is_backward = any(".backward(" in file.code(later) for later in body[num:])
            return num if is_backward else 1
    return 1
