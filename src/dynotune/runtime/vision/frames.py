"""Check frames, and group them into batches that fit one network input."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from torch import Tensor

from dynotune.runtime.errors import InputError, SourceError, TooLargeError

Frame = Any  # a numpy array or a tensor: uint8 [height, width, 3]
T = TypeVar("T")

CHUNK, FEW = 8, 4  # frames of a chunk at most; frames that are not split


def size_of(frame: Frame, *, max_size: tuple[int, int], name: str = "The frame") -> tuple[int, int]:
    """Check a frame, and return its height and width.

    `max_size`: height and width for which buffers were made; only their product counts.

    Raises:
        InputError: if the frame is not such an array, or is empty.
        TooLargeError: if the frame has more pixels than the buffers hold.
    """
    shape, dtype = getattr(frame, "shape", None), str(getattr(frame, "dtype", ""))
    if shape is None or not dtype:
        raise InputError(
            f"{name} is a {type(frame).__name__}, not an array.",
            hint="Give numpy arrays or torch tensors: uint8, [height, width, 3].",
        )
    if dtype.removeprefix("torch.") != "uint8":
        raise InputError(
            f"{name} is of {dtype}; frames are uint8.", hint="Do not scale frames: the detector does."
        )
    if len(shape) != 3 or shape[2] != 3:
        raise InputError(
            f"{name} has the shape {tuple(shape)}; frames are [height, width, 3].",
            hint=(
                "Repeat a grey channel three times, drop an alpha channel, and give a batch as a list of "
                "frames."
            ),
        )
    height, width = int(shape[0]), int(shape[1])
    if height == 0 or width == 0:
        raise InputError(
            f"{name} is empty: {height} by {width} pixels.", hint="The reader may have failed: skip it."
        )
    if height * width > max_size[0] * max_size[1]:
        raise TooLargeError(
            f"{name} has {height} by {width} pixels; the buffers were made for {max_size[0]} by "
            f"{max_size[1]}.",
            hint=f"Give max_frame=({height}, {width}) to the detector.",
        )
    return height, width


def consecutive(
    source: Iterable[T], key: Callable[[T], object], max_batch: int
) -> Iterator[tuple[list[T], list[T]]]:
    """Yield batches of at most `max_batch` consecutive frames with one key, in order, as a pair of frames and
    tags.

    If the source raises, or `key` refuses a frame, the frames read before come first.

    Raises:
        SourceError: if the source raised.
        Any exception of `key`.
    """
    batch: list[T] = []
    last: object = None
    failed: Exception | None = None
    frames = iter(source)
    while failed is None:
        try:
            frame = next(frames)
        except StopIteration:
            break
        except Exception as error:
            failed = SourceError(
                f"The source of frames raised {type(error).__name__}: {error}",
                hint="Results of earlier frames were delivered; the detector can be used on.",
            )
            failed.__cause__ = error
            break
        try:
            own = key(frame)
        except InputError as error:
            failed = error
            break
        if batch and own != last:
            yield batch, batch
            batch = []
        last = own
        batch.append(frame)
        if len(batch) == max_batch:
            yield batch, batch
            batch = []
    if batch:
        yield batch, batch
    if failed is not None:
        raise failed


def neighbours(frames: Sequence[Frame], at_most: int) -> list[tuple[int, int]]:
    """List the uploads of a batch as (first frame, number): frames of one size in one place, a power of two
    of them.

    Powers of two let few buffer sizes serve batches of any size.

    `at_most`: largest number of frames per upload.
    """
    split: list[tuple[int, int]] = []
    start = 0
    while start < len(frames):
        num, alike = 1, _alike(frames[start])
        while num < at_most and start + num < len(frames) and _alike(frames[start + num]) == alike:
            num += 1
        num = power_of_two(num)
        split.append((start, num))
        start += num
    return split


def common_size(frames: Sequence[Frame]) -> tuple[int, int] | None:
    """Return the height and width of frames that all lie on the host and have one size, else None."""
    first = frames[0]
    shape, kind = first.shape, type(first)
    if not all(frame.shape == shape and type(frame) is kind for frame in frames):
        return None
    if isinstance(first, Tensor) and any(is_on_device(frame) for frame in frames):
        return None
    return shape[0], shape[1]


def _alike(frame: Frame) -> tuple[Any, ...]:
    return tuple(frame.shape), getattr(frame, "device", None)


def is_on_device(frame: Frame) -> bool:
    """Return whether the frame is a tensor outside of the host's memory."""
    return isinstance(frame, Tensor) and frame.device.type != "cpu"


def chunk_of(largest: int) -> int:
    """Return how many frames are copied and uploaded at once, a power of two, if batches have at most
    `largest` frames: in larger batches, some frames are copied while others travel."""
    return power_of_two(largest if largest <= FEW else max(FEW, min(CHUNK, largest // 2)))


def power_of_two(num: int) -> int:
    """Return the largest power of two that is not larger than `number`."""
    return 1 << (num.bit_length() - 1)
