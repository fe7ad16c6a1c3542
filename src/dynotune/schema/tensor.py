"""One tensor, as the agent observed it."""

import msgspec


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor that the agent observed.

    `pinned`: None for a tensor outside host memory. `channels_last`: None unless the tensor has four
        dimensions.
    """

    shape: list[int]
    dtype: str
    device: str
    num_bytes: int
    pinned: bool | None = None
    channels_last: bool | None = None
