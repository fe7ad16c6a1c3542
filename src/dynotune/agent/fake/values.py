"""Follow the values of small tensors on the simulated device, as far as they are known."""

from __future__ import annotations

from .recorder import Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_KNOWN = 1 << 16
"""Largest number of elements of a tensor whose values are followed."""

MOST_COPIED_BYTES = 64 << 20
"""Larger copies to the host stay without data."""

# Operators whose output counts as unchanged while gradients are finite.
_KEEP_VALUES = {"aten::_amp_foreach_non_finite_check_and_unscale_"}


class Values:
    """Known values of fake tensors.

    Each is a host tensor, whose views correspond to the fake tensor's views.
    """

    def __init__(self, torch: Any, fake_class: Any, recorder: Recorder) -> None:
        from torch.utils import _pytree

        self._torch = torch
        self._fake_class = fake_class
        self._recorder = recorder
        self._tree = _pytree

    def tensors(self, tree: Any) -> list[Any]:
        return [leaf for leaf in self._tree.tree_leaves(tree) if isinstance(leaf, self._torch.Tensor)]

    def known(self, tensor: Any) -> Any:
        """Return the values of a tensor without data; None if the values are unknown."""
        found = tensor.__dict__.get("_dynotune_known")
        if found is None:
            return None
        # The storage is emptied when a value is forgotten.
        return found if found.untyped_storage().nbytes() or not found.numel() else None

    def are_known(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Tell whether the operator's results follow from known values."""
        given = self.tensors((args, kwargs))
        if self._torch.Tag.nondeterministic_seeded in func.tags:
            return False
        if not given and "empty" in func._schema.name:
            return False
        return all(
            self.known(one) is not None if isinstance(one, self._fake_class) else one.numel() <= MOST_KNOWN
            for one in given
        )

    def computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Compute an operator's results on the host; None if the host does not implement the operator."""

        def real(value: Any) -> Any:
            if isinstance(value, self._torch.device):
                return self._torch.device("cpu")
            return self.known(value) if isinstance(value, self._fake_class) else value

        try:
            found = func(*self._tree.tree_map(real, args), **self._tree.tree_map(real, kwargs))
            return () if found is None else found
        except RuntimeError:
            return None

    def keep(self, func: Any, args: Any, written: Any, out: Any, found: Any) -> None:
        """Keep the values computed for an operator's results.

        If there are none, forget the values of tensors that the operator overwrote.
        """
        results = self.tensors(out)
        if found is not None:
            for tensor, value in zip(results, self.tensors(found)):
                tensor._dynotune_known = value
            return
        if func._schema.name not in _KEEP_VALUES:
            for tensor in self.tensors(written):
                if (value := self.known(tensor)) is not None:
                    value.untyped_storage().resize_(0)  # for all of its views, too
        if results and results[0].dtype == self._torch.bool:
            results[0]._dynotune_truth = self._truth(func, args)

    def read(self, tensor: Any) -> Any:
        """Return the number that the program reads from a tensor."""
        values = self.known(tensor)
        if values is not None:
            return values.item()
        self._recorder.read()
        return self._stand_in(tensor)

    def on_host(self, tensor: Any) -> Any:
        """Return a tensor that was copied to the host, with its known values or with substitutes."""
        values = self.known(tensor)
        if values is not None:
            return values.clone()
        if tensor.untyped_storage().nbytes() > MOST_COPIED_BYTES:
            return tensor
        self._recorder.read()
        made = self._torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return made.fill_(self._stand_in(tensor))

    def _truth(self, func: Any, args: Any) -> bool:
        """Return the operator's result for tensors of one element, which stands for that of all elements."""

        def one(value: Any) -> Any:
            is_tensor = isinstance(value, self._torch.Tensor)
            return self._torch.full([1] * value.dim(), self._stand_in(value)) if is_tensor else value

        try:
            return bool(func(*self._tree.tree_map(one, args)).flatten()[0])
        except Exception:  # a shape or an index that one element does not have
            values = [value for value in self.tensors(args) if value.dtype == self._torch.bool]
            return all(self._stand_in(value) for value in values)

    def _stand_in(self, tensor: Any) -> Any:
        values = self.known(tensor) if isinstance(tensor, self._fake_class) else tensor
        if values is not None and values.numel() == 1:
            return values.item()
        if tensor.dtype == self._torch.bool:
            return tensor.__dict__.get("_dynotune_truth", False)
        return 1.0 if tensor.dtype.is_floating_point or tensor.dtype.is_complex else 0
