"""Values of tensors on the pretended device, as far as they are known.

Small ones that the program brought there itself, such as token numbers, lengths and masks, are known, and so is what is
computed of them: it is computed beside the operator. All others are answered as if they were one, which makes a loss
finite, and a comparison of booleans follow from that.
"""

from __future__ import annotations

import operator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .recorder import Recorder

MOST_KNOWN = 1 << 16
"""Elements of a tensor whose values are followed."""
MOST_COPIED_BYTES = 64 << 20
"""Copies to the host that are larger stay without data."""
_COMPARISONS = {"aten::" + name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# Booleans that such results go through, as if there were one element.
_PASSES = "mul bitwise_and logical_and all any view clone _to_copy detach select squeeze"
_PASS = {"aten::" + name for name in _PASSES.split()}
_NEGATIONS = {"aten::logical_not", "aten::bitwise_not"}
# What they write is as good as unchanged while gradients are finite.
_KEEP_VALUES = {"aten::_amp_foreach_non_finite_check_and_unscale_"}


class Operator:
    """What its schema tells of an operator.

    Attributes:
        written, viewed: positions of arguments that it writes, and of those its results are views of.
        draws: its results are random.
    """

    def __init__(self, torch: Any, function: Any) -> None:
        self.function, self.name = function, function._schema.name
        aliases = [(at, argument.alias_info) for at, argument in enumerate(function._schema.arguments)]
        self.written = [at for at, alias in aliases if alias is not None and alias.is_write]
        self.viewed = [at for at, alias in aliases if alias is not None and not alias.is_write]
        self.draws = torch.Tag.nondeterministic_seeded in function.tags

    def arguments(self, positions: list[int], args: Any, kwargs: Any) -> list[Any]:
        names = self.function._schema.arguments
        return [args[at] if at < len(args) else kwargs.get(names[at].name) for at in positions]


class Values:
    """Keeps values with the tensors that have them."""

    def __init__(self, torch: Any, fake_class: Any, recorder: Recorder) -> None:
        self._torch, self._fake_class, self._recorder = torch, fake_class, recorder

    def tensors(self, values: Any) -> Iterator[Any]:
        for value in values:
            if isinstance(value, self._torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from self.tensors(value)

    def known(self, tensor: Any) -> Any:
        """The values of a tensor without data; None where nobody knows them."""
        found = tensor.__dict__.get("_dynotune_known")
        return found[0] if found is not None and found[1][0] else None

    def keep(self, tensor: Any, values: Any, cell: list[bool]) -> None:
        """These are its values for as long as the cell, which its views share, says so."""
        tensor._dynotune_known = values, cell

    def are_known(self, operator: Operator, args: Any, kwargs: Any) -> bool:
        """Whether the operator's results follow from known values."""
        found = list(self.tensors((*args, *kwargs.values())))
        if operator.draws or (operator.name.startswith("aten::empty") and not found):
            return False
        return all(
            self.known(one) is not None if isinstance(one, self._fake_class) else one.numel() <= MOST_KNOWN
            for one in found
        )

    def computed(self, operator: Operator, args: Any, kwargs: Any) -> Any:
        """The results on the host."""
        return operator.function(*self._real(args), **{name: self._real(value) for name, value in kwargs.items()})

    def follow(self, operator: Operator, args: Any, kwargs: Any, out: Any, are_known: bool) -> None:
        """Compute known values beside the operator, or forget those that are known no longer."""
        results = list(self.tensors((out,)))
        if are_known and all(tensor.numel() <= MOST_KNOWN for tensor in results):
            if results and all("_dynotune_known" in tensor.__dict__ for tensor in results) and not operator.written:
                return
            try:
                values = self.computed(operator, args, kwargs)
            except RuntimeError:  # the CPU has no such operator
                return
            cell = [True]
            for base in operator.arguments(operator.viewed, args, kwargs):
                if isinstance(base, self._fake_class):
                    cell = base.__dict__["_dynotune_known"][1]
            if not operator.written:
                for tensor, value in zip(results, self.tensors((values,))):
                    self.keep(tensor, value, cell)
            return
        if operator.name not in _KEEP_VALUES:
            for tensor in self.tensors(operator.arguments(operator.written, args, kwargs)):
                if (found := tensor.__dict__.get("_dynotune_known")) is not None:
                    found[1][0] = False
        if results and results[0].dtype == self._torch.bool:
            results[0]._dynotune_truth = self._truth(operator.name, args)

    def read(self, tensor: Any) -> Any:
        """The number that the program asks for."""
        values = self.known(tensor)
        if values is not None:
            return values.item()
        self._recorder.read()
        return self._stand_in(tensor)

    def on_host(self, tensor: Any) -> Any:
        """A tensor that left the device, with its values or others that stand for them."""
        values = self.known(tensor)
        if values is not None:
            return values.clone()
        if tensor.untyped_storage().nbytes() > MOST_COPIED_BYTES:
            return tensor
        self._recorder.read()
        made = self._torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.fill_(self._stand_in(tensor))

    def _real(self, value: Any) -> Any:
        if isinstance(value, self._fake_class):
            return self.known(value)
        if isinstance(value, self._torch.device):
            return self._torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return type(value)(self._real(inner) for inner in value)
        return value

    def _truth(self, name: str, args: Any) -> bool:
        """What a comparison of tensors of nothing but ones would say."""
        if (compare := _COMPARISONS.get(name)) is not None:
            return bool(compare(*(self._stand_in(value) for value in args[:2])))
        if name in _NEGATIONS:
            return not self._stand_in(args[0])
        return name in _PASS and all(bool(self._stand_in(value)) for value in self.tensors(args))

    def _stand_in(self, value: Any) -> Any:
        if not isinstance(value, self._torch.Tensor):
            return value
        values = self.known(value) if isinstance(value, self._fake_class) else value
        if values is not None and values.numel() == 1:
            return values.item()
        if value.dtype == self._torch.bool:
            return value.__dict__.get("_dynotune_truth", False)
        return 1.0 if value.dtype.is_floating_point or value.dtype.is_complex else 0
