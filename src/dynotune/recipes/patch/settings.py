"""Decide where in the program's files each setting belongs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst

from dynotune import knobs
from dynotune.recipes.patch import statements
from dynotune.recipes.patch.calls import (
    POSITIONS,
    argument_of,
    calls_of,
    is_passed_as,
    refuse_indirect,
    set_argument,
    target_of,
)
from dynotune.recipes.patch.configuration import plain_values
from dynotune.recipes.patch.options import Origins
from dynotune.recipes.patch.source import NoPlace, SourceFile
from dynotune.recipes.patch.surroundings import (
    bound_by_loops,
    is_assigned_to,
    is_conditional,
    is_sure_to_run,
)
from dynotune.schema.knob import (
    AllocConf,
    Argument,
    Attr,
    Call,
    Constructor,
    Env,
    Interpreter,
    Method,
    Module,
    Preload,
    Revision,
    TrainerArgument,
    by_value,
)
from dynotune.schema.setting import UNSET, Setting

_ALIASES = {
    "lightning.Trainer": ("lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer"),
    "transformers.TrainingArguments": (
        "transformers.TrainingArguments",
        "transformers.Seq2SeqTrainingArguments",
        "trl.SFTConfig",
    ),
}
# Variables that are read after torch was imported: when the GPU is first used, or when something is compiled.
_READ_LATE = re.compile(
    r"TORCHINDUCTOR_\w+|TRITON_\w+|CUBLAS_WORKSPACE_CONFIG|NCCL_\w+|CUDA_CACHE_\w+|CUDA_MODULE_LOADING"
    r"|CUDA_DEVICE_MAX_CONNECTIONS|TEARDOWN_CUPTI|TOKENIZERS_PARALLELISM"
)
_LOADER = "torch.utils.data.DataLoader"
_NEED_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
_OFF = ("None", "False", "0", "null", "false")
_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}


@dataclass
class Places:
    """Place settings in the files of a program.

    Args:
        files: parsed files of the program, the entry first.
        chosen: value of each setting of the recipe, by knob.
        device: `cuda` or `cpu`.
        is_script: whether the entry is started as a script, not as a module of a package.
    """

    files: Sequence[SourceFile]
    origins: Origins
    chosen: dict[str, object]
    device: str
    is_script: bool = True

    def put(self, setting: Setting) -> list[str]:
        """Ask for the edits of one setting, and return their places with what was written there.

        Raises NoPlace: the setting has no place in code; the message says why, and where.
        """
        knob = knobs.get(setting.knob)
        match knob.site:
            case Env(name):
                return self._variable(name, setting.value)
            case AllocConf() | Preload():
                raise NoPlace(
                    "it is read when the process starts; set it where the program is started (--format shell)"
                )
            case Argument():
                raise NoPlace("it belongs to the command line, not to a file")
            case Revision() | Interpreter():
                raise NoPlace("it says how the program is started, not what its code does")
        if places := self._of_trainer(setting):
            return [*places, *self._beside_trainer(knob.site)]
        match knob.site:
            case Constructor(targets, argument):
                return self._constructor(setting, targets, argument)
            case Call(setter, _):
                return self._setter(setting, setter)
            case Attr(path):
                return self._attribute(setting, path)
            case Method():
                return self._copies(setting)
            case Module("compile"):
                return self._compile(str(setting.value))
            case Module("autocast"):
                return self._autocast(str(setting.value))
            case Module("channels_last"):
                memory_format = "channels_last" if setting.value else "contiguous_format"
                return self._on_model(f".to(memory_format=torch.{memory_format})")
            case Module("grad_mode"):
                return statements.around_calls(self.files, f"torch.{setting.value}()", with_loss=False)
        raise NoPlace("no argument and no line of code does it as dynotune does; use dynotune run")

    # Variables

    def _variable(self, name: str, value: object) -> list[str]:
        where = "set it where the program is started (--format shell)"
        if value == UNSET:
            raise NoPlace(f"a variable must be missing before the process starts; {where}")
        if not _READ_LATE.fullmatch(name):
            raise NoPlace(f"{name} is read when the process starts, or when libraries are loaded; {where}")
        if not self.is_script:
            raise NoPlace(
                f"the module's package may import torch before the first line of the module; {where}"
            )
        for file in self.files:
            for node in file.nodes:
                is_write = isinstance(node, cst.SimpleString) and node.evaluated_value == name
                if is_write:
                    raise NoPlace(f"{file.place(node)}: the program names {name} itself")
        return [statements.set_variable(self.files[0], name, str(value))]

    # Calls

    def _of_trainer(self, setting: Setting) -> list[str]:
        """Set the argument of a trainer that does what the setting does; [] without such a trainer."""
        places: list[str] = []
        for target, entry in knobs.get(setting.knob).trainers.items():
            argument, aliases = entry.argument, _ALIASES[target]
            for file, call, _ in self._calls(aliases):
                text = _passed(entry, setting, file.place(call))
                self._refuse_beside(entry, _arguments(file, call, entry), file.place(call))
                places += self._set(file, call, argument, text, None)
            for made in self.origins.configurations.made_by(aliases):
                text = _passed(entry, setting, made.file.name)
                self._refuse_beside(entry, plain_values(made.mapping), made.file.name)
                places.append(self.origins.configurations.set_argument(made, argument, text))
            if places or not target.startswith("transformers."):
                continue
            for file in self.files:
                names = set[str]().union(*(file.qualified(call.func) for call in file.calls()))
                if "transformers.HfArgumentParser" in names:
                    raise NoPlace(
                        f"{file.name}: the arguments come from the command line: give `--{argument}` there"
                    )
        return places

    def _refuse_beside(self, entry: TrainerArgument, given: Mapping[str, str], place: str) -> None:
        """Raise NoPlace where a trainer's other arguments disagree with the one to set."""
        argument = entry.argument
        for other in entry.beside:
            if given.get(other, "None") not in _OFF:
                raise NoPlace(f"{place}: transformers refuses {argument} beside {other}={given[other]}")
        for knob, other in entry.needs.items():
            if self.chosen.get(knob, given.get(other, "None")) in (0, *_OFF):
                raise NoPlace(f"{place}: transformers refuses {argument} without {other}")
        replaces = entry.replaces
        if replaces and argument in given and given[argument].strip("'\"") not in replaces:
            raise NoPlace(f"{place}: {argument}={given[argument]} is another optimizer")

    def _beside_trainer(self, site: object) -> list[str]:
        """Name the calls that a trainer's argument does not reach."""
        targets = site.targets if isinstance(site, Constructor) else ()
        return [
            f"{file.place(call)}: {file.code(call)} is left as it is: the trainer does not make it"
            for file, call, _ in self._calls(targets)
        ]

    def _constructor(self, setting: Setting, targets: Sequence[str], argument: str) -> list[str]:
        if argument in ("comm_hook", "prefetch") or targets[0].endswith("FSDPModule"):
            raise NoPlace("it is no argument of a call; use dynotune run")
        for file in self.files:
            refuse_indirect(file, targets)
        places: list[str] = []
        refused: list[NoPlace] = []
        for file, call, target in self._calls(targets):
            try:
                places += self._argument(file, call, target, argument, setting.value)
            except NoPlace as error:
                refused.append(error)
        configurations = self.origins.configurations
        for made in configurations.made_by(targets):
            places.append(configurations.set_argument(made, argument, repr(setting.value)))
        if refused:
            raise refused[0]
        if not places:
            names = " or ".join(target.rpartition(".")[2] for target in targets)
            raise NoPlace(f"no line of the program's files calls {names}")
        return places

    def _calls(self, targets: Sequence[str]) -> Iterator[tuple[SourceFile, cst.Call, str]]:
        for file in self.files:
            for call, target in calls_of(file, targets):
                yield file, call, target

    def _argument(
        self, file: SourceFile, call: cst.Call, target: str, argument: str, value: object
    ) -> list[str]:
        if target == _LOADER:
            self._check_workers(file, call, argument, value)
        if argument == "fused" and value is True:
            for other in ("foreach", "capturable"):
                given = argument_of(file, call, other)
                if given is not None and file.code(given.value) not in ("None", "False"):
                    raise NoPlace(f"{file.place(call)}: torch refuses fused beside {file.code(given)}")
        return self._set(file, call, argument, repr(value), POSITIONS.get(target, {}).get(argument))

    def _check_workers(self, file: SourceFile, call: cst.Call, argument: str, value: object) -> None:
        """Raise NoPlace where torch would refuse the loader, or the setting is without effect."""
        workers = self.chosen.get("loader.num_workers")
        if argument == "num_workers" and value:
            self._refuse_unsplit()
        if argument == "num_workers" and not value:
            for other in _NEED_WORKERS:
                given = argument_of(file, call, other, POSITIONS[_LOADER].get(other))
                if given is not None and file.code(given.value) not in ("None", "False"):
                    raise NoPlace(f"{file.place(call)}: without workers torch refuses {file.code(given)}")
        if argument not in _NEED_WORKERS or value is False or workers:
            return
        given = argument_of(file, call, "num_workers", POSITIONS[_LOADER]["num_workers"])
        text = "0" if given is None else file.code(given.value)
        if not re.fullmatch(r"[1-9][0-9]*", text):
            raise NoPlace(
                f"{file.place(call)}: torch refuses {argument} in a loader without workers, and its "
                f"num_workers is {text}"
            )

    def _refuse_unsplit(self) -> None:
        """Raise NoPlace where every worker would yield all samples of a dataset."""
        for source in self.files:
            for node in source.nodes:
                is_stream = isinstance(node, cst.ClassDef) and any(
                    target_of(source, base.value, ["torch.utils.data.IterableDataset"]) for base in node.bases
                )
                if is_stream and b"get_worker_info" not in source.raw:
                    raise NoPlace(
                        f"{source.place(node)}: an IterableDataset that does not ask get_worker_info(): "
                        "every worker would yield all of it"
                    )

    def _set(
        self, file: SourceFile, call: cst.Call, argument: str, value: str, position: int | None
    ) -> list[str]:
        given = argument_of(file, call, argument, position)
        if given is not None:
            if file.code(given.value) == value:
                return [f"{file.place(call)}: {file.code(given)} already"]
            is_same = partial(is_passed_as, file, call, argument, position)
            origin = self.origins.set(file, given.value, value, is_same)
            if origin is not None:
                return origin
        set_argument(file, call, argument, value, position)
        return [f"{file.place(call)}: {file.code(call)}: {argument}={value}"]

    def _copies(self, setting: Setting) -> list[str]:
        """Set `non_blocking` where a batch of a loop is copied: on names that the loop binds."""
        places: list[str] = []
        for file in self.files:
            for call in file.calls():
                func = call.func
                if (
                    isinstance(func, cst.Attribute)
                    and func.attr.value in ("to", "cuda", "copy_")
                    and isinstance(func.value, cst.Name)
                    and func.value.value in bound_by_loops(file, call)
                ):
                    places += self._set(file, call, "non_blocking", repr(setting.value), None)
        if not places:
            raise NoPlace("no line of the program's files copies what a `for` loop draws")
        return places

    # Statements

    def _setter(self, setting: Setting, setter: str) -> list[str]:
        for file in self.files:
            for node in file.nodes:
                if not isinstance(node, cst.Assign):
                    continue
                targets = set[str]().union(*(file.qualified(target.target) for target in node.targets))
                if not targets & set(knobs.get(setting.knob).overruled_by):
                    continue
                if (file.code(node.value), setting.value) not in (("True", "high"), ("False", "highest")):
                    raise NoPlace(f"{file.place(node)}: `{file.code(node)}` has the last word")
                if is_sure_to_run(file, node):
                    return [f"{file.place(node)}: {file.code(node)} already"]
        places: list[str] = []
        is_sure = False
        for file, call, _ in self._calls([setter]):
            if not call.args:
                continue
            keyword = call.args[0].keyword
            places += self._set(
                file, call, keyword.value if keyword else "", repr(setting.value), None if keyword else 0
            )
            is_sure |= is_sure_to_run(file, call)
        if not is_sure:
            places.append(statements.after_imports(self.files[0], f"{setter}({setting.value!r})"))
        return places

    def _attribute(self, setting: Setting, path: str) -> list[str]:
        places: list[str] = []
        is_sure = False
        for file in self.files:
            for node in file.nodes:
                if not isinstance(node, cst.Assign):
                    continue
                if not any(path in file.qualified(target.target) for target in node.targets):
                    continue
                is_sure |= is_sure_to_run(file, node)
                if file.code(node.value) == repr(setting.value):
                    places.append(f"{file.place(node)}: {file.code(node)} already")
                    continue
                origin = self.origins.set(
                    file, node.value, repr(setting.value), partial(is_assigned_to, path)
                )
                if origin is None:
                    file.edits.replaced[node.value] = cst.parse_expression(repr(setting.value))
                    origin = [f"{file.place(node)}: {file.code(node)}: {setting.value!r}"]
                places += origin
        if not is_sure:
            places.append(statements.after_imports(self.files[0], f"{path} = {setting.value!r}"))
        return places

    def _on_model(self, code: str) -> list[str]:
        file, statement, model, is_before = statements.model_of(self.files)
        statements.import_torch(file, statement)
        return [statements.beside_model(file, statement, f"{model}{code}", is_before=is_before)]

    def _compile(self, mode: str) -> list[str]:
        if mode == "off":
            return [statements.after_imports(self.files[0], "torch.compiler.set_stance('force_eager')")]
        places: list[str] = []
        for file, call, _ in self._calls(["torch.compile"]):
            if is_conditional(file, call):
                raise NoPlace(
                    f"{file.place(call)}: the program compiles only under a condition; make it hold"
                )
            if unused := self._uncalled(file, call):
                raise NoPlace(f"{file.place(call)}: nothing calls `{unused}`, in which the program compiles")
            if mode == "default" and argument_of(file, call, "mode") is None:
                places.append(f"{file.place(call)}: {file.code(call)} already")
            else:
                places += self._set(file, call, "mode", repr(mode), None)
        for file in self.files:
            for node in file.nodes:
                if isinstance(node, cst.Decorator) and "torch.compile" in file.qualified(node.decorator):
                    raise NoPlace(f"{file.place(node)}: torch.compile is a decorator of its own there")
        if places:
            return places
        argument = "" if mode == "default" else f"mode={mode!r}"
        file, statement, model, is_before = statements.model_of(self.files)
        code = f"{model}.compile({argument})"
        return [statements.beside_model(file, statement, code, is_before=is_before)]

    def _uncalled(self, file: SourceFile, node: cst.CSTNode) -> str:
        """Return the plain function around a node that no file names elsewhere; "" if there is none."""
        for each in file.above(node):
            if not isinstance(each, cst.FunctionDef) or each.decorators:
                continue
            if any(isinstance(above, cst.ClassDef) for above in file.above(each)):
                continue
            name = each.name.value
            uses = (
                other is not each.name and isinstance(other, cst.Name) and other.value == name
                for source in self.files
                for other in source.nodes
            )
            if not any(uses):
                return name
        return ""

    def _autocast(self, value: str) -> list[str]:
        own = list(self._calls(["torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"]))
        if value == "off":
            if not own:
                raise NoPlace("no line of the program's files calls torch.autocast")
            return [
                place for file, call, _ in own for place in self._set(file, call, "enabled", "False", None)
            ]
        if own:
            file, call, _ = own[0]
            raise NoPlace(
                f"{file.place(call)}: the program has an autocast of its own, which the setting would keep"
            )
        header = f"torch.autocast({self.device!r}, dtype={_DTYPES[value]})"
        return statements.around_calls(self.files, header, with_loss=True)


def _passed(entry: TrainerArgument, setting: Setting, place: str) -> str:
    """Return the text of Python that a trainer's argument gets. Raises NoPlace: it has none for this
    value."""
    if not entry.values:
        return repr(setting.value)
    passed = by_value(entry.values, setting.value)
    if not passed:
        raise NoPlace(f"{place}: {entry.argument} has no value for {setting}")
    return passed


def _arguments(file: SourceFile, call: cst.Call, entry: TrainerArgument) -> dict[str, str]:
    """Return the arguments of a trainer on which one of them depends, as text.

    Raises NoPlace: as `argument_of`.
    """
    names = [
        *entry.beside,
        *entry.needs.values(),
        *([entry.argument] if entry.replaces else []),
    ]
    given = {name: argument_of(file, call, name) for name in names}
    return {name: file.code(arg.value) for name, arg in given.items() if arg is not None}
