"""What cuBLAS and kernels take for themselves."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dynotune.agent.fake import kernels


@pytest.mark.parametrize(
    ("setting", "capability", "version", "kib"),
    [
        ("", (9, 0), (2, 11), 32 << 10),
        ("", (8, 0), (2, 11), 8320),
        ("", (10, 0), (2, 11), 8320),
        ("", (12, 0), (2, 12), 32 << 10),
        (":4096:2:16:8", (9, 0), (2, 11), 8320),
        (":16:8", (9, 0), (2, 11), 128),
    ],
)
def test_the_workspace_of_cublas_is_as_large_as_torch_takes_it(setting, capability, version, kib):
    assert kernels.workspace_bytes(setting, capability, version) == kib << 10


H100 = 132 * 2048
"""Threads that an H100 or an H200 runs at a time."""


def rows_summed(rows, columns, *, offset=0, partial=4, threads=H100):
    return kernels.reduction_bytes({0}, ((rows, columns), (columns, 1), offset, 2), partial, threads)


def longhand(inputs, outputs, partial, threads, *, vector, inner, loads=1):
    """The rule of torch's header step by step, where a block's height and width depend on both sizes."""
    across, along = (inputs // loads, outputs) if inner else (outputs // vector, inputs)
    most = 512 // vector
    wide, high = (1 << min(count, most).bit_length() - 1 for count in (across, along))
    height = min(high, most // min(wide, 32))
    width = min(wide, most // height)
    step = width if inner else 1
    is_split = -(-inputs // step) >= min(16 * height, 256)
    each = -(-inputs // (step * (height if is_split else 1)))
    blocks = -(-(outputs // vector) // ((1 if inner else width) * (1 if is_split else height)))
    wanted = threads // (width * height)
    if not is_split or each < 256 or blocks > wanted:
        return ()
    shares = max(min(-(-wanted // blocks), -(-each // 16)), -(-each // 256))
    return (partial * outputs * shares * (1 if inner else width * vector), 4 * blocks) if shares > 1 else ()


sizes = st.integers(1, 1 << 16) | st.integers(1, 1 << 12).map(lambda size: 4 * size)
gpus = st.sampled_from([40 * 1024, 58 * 1536, 108 * 2048, H100])


@pytest.mark.parametrize(
    ("columns", "num_bytes"), [(1000, 65_536_000), (2048, 134_217_728), (512, 33_554_432)]
)
def test_the_buffer_of_a_sum_over_rows_is_as_large_as_on_an_h200(columns, num_bytes):
    """As benchmarks/results/memory_peak_blocks_h200.json has them, of the gradients of biases."""
    results, semaphores = rows_summed(8192, columns)
    assert results == num_bytes
    assert 0 < semaphores < 512


@given(rows=sizes, columns=sizes.filter(lambda size: size > 1), offset=st.integers(0, 8), threads=gpus)
def test_sums_over_rows_take_what_the_rule_of_torch_gives(rows, columns, offset, threads):
    assume(rows > 1 and rows * columns < 1 << 30)
    vector = math.gcd(4, offset, columns)
    expected = longhand(rows, columns, 4, threads, vector=vector, inner=False)
    assert rows_summed(rows, columns, offset=offset, threads=threads) == expected


@given(rows=sizes, columns=sizes, loads=st.sampled_from([1, 4, 8]), threads=gpus)
def test_sums_over_neighbours_take_what_the_rule_of_torch_gives(rows, columns, loads, threads):
    assume(columns > 1 and rows * columns < 1 << 30)
    found = kernels.reduction_bytes({1}, ((rows, columns), (columns, 1), 0, 2), 4, threads)
    loads = loads if columns >= 128 else 1  # the kernel loads several elements at a time from long rows only
    assert found == longhand(columns, rows, 4, threads, vector=1, inner=True, loads=loads)


@given(
    rows=sizes,
    columns=sizes,
    dims=st.sampled_from([{0}, {1}, {0, 1}]),
    partial=st.sampled_from([2, 4, 8, 16, 32]),
)
def test_buffers_are_bounded_by_the_blocks_that_the_gpu_runs(rows, columns, dims, partial):
    assume(rows * columns < 1 << 30)
    found = kernels.reduction_bytes(dims, ((rows, columns), (columns, 1), 0, 2), partial, H100)
    inputs = math.prod((rows, columns)[at] for at in dims)
    if inputs <= 4 * 255:  # at least four threads of a block share an output, and each must have 256 elements
        assert found == ()
    if found:
        # A block has 128 threads or more, and its rows up to 128 outputs. The blocks are at most twice as
        # many as the GPU can run, or as many as leave 256 elements to a thread, and one more for each output.
        most = max(2 * H100, rows * columns / (4 * 256) + rows * columns / inputs)
        assert found[0] <= partial * 128 * most
        assert found[1] <= 4 * H100 // 128


def test_a_sum_over_few_rows_or_into_many_outputs_takes_no_buffer():
    assert rows_summed(512, 4096) == ()
    assert rows_summed(1 << 14, 1 << 18, threads=40 * 1024) == ()


def test_a_sum_over_contiguous_rows_takes_a_partial_result_of_each_block():
    assert kernels.reduction_bytes({1}, ((4, 1 << 22), (1 << 22, 1), 0, 4), 4, H100) == (4 * 4 * 132, 4 * 4)
    assert kernels.reduction_bytes({1}, ((8192, 1024), (1024, 1), 0, 4), 4, H100) == ()
    (results, semaphores) = kernels.reduction_bytes({0}, ((1 << 24,), (1,), 0, 4), 4, H100)
    assert (results, semaphores) == (4 * 528, 4)


@given(shape=st.lists(st.integers(1, 64), min_size=1, max_size=4), columns=st.integers(2, 4096))
def test_dimensions_that_memory_holds_as_one_count_as_one(shape, columns):
    strides = [columns * math.prod(shape[at + 1 :]) for at in range(len(shape))]
    found = kernels.reduction_bytes(set(range(len(shape))), ((*shape, columns), (*strides, 1), 0, 2), 4, H100)
    assume(math.prod(shape) * columns < 1 << 30)
    assert found == rows_summed(math.prod(shape), columns)


def test_a_tensor_is_reduced_in_the_order_of_memory_and_not_of_its_dimensions():
    turned = kernels.reduction_bytes({1}, ((1000, 8192), (1, 1000), 0, 2), 4, H100)
    assert turned == rows_summed(8192, 1000)
    spread = kernels.reduction_bytes(
        {0}, ((8192, 1000), (0, 0), 0, 2), 4, H100
    )  # as of the gradient of a sum
    assert spread == longhand(8192, 1000, 4, H100, vector=1, inner=False)


def test_a_repeated_dimension_stays_behind_the_reduced_ones_that_follow_it():
    """As in the gradient of a bias whose outputs are averaged over samples."""
    layout = ((256, 4096, 512), (0, 512, 1), 0, 2)
    assert kernels.reduction_bytes({0, 1}, layout, 4, H100) == rows_summed(256 * 4096, 512)


def test_an_input_is_copied_into_the_results_type_whatever_the_size():
    torch = pytest.importorskip("torch")
    mask, count = torch.ones(8, 8, dtype=torch.bool), torch.ops.aten.sum.default
    assert kernels.buffers(count, (mask,), {}, [mask.sum()], H100) == (64 * 8,)
    assert kernels.buffers(count, (mask.half(),), {"dtype": torch.float32}, [mask.float().sum()], H100) == ()


def test_a_tensor_of_more_than_2_gib_is_reduced_by_several_kernels_one_after_another():
    fits = rows_summed(1 << 15, 1 << 15)
    assert (
        rows_summed(1 << 16, 1 << 15) == rows_summed(1 << 17, 1 << 15) == fits > rows_summed(1 << 14, 1 << 15)
    )


@pytest.mark.parametrize(
    ("call", "partial"),
    [
        (lambda torch, x: torch.sum(x, 0), 4),
        (lambda torch, x: torch.sum(x, [0], dtype=torch.float64), 8),
        (lambda torch, x: torch.mean(x, (0,), keepdim=True), 4),
        (lambda torch, x: torch.linalg.vector_norm(x, 2.0, dim=0), 4),
        (lambda torch, x: torch.norm(x, dim=0), 4),
        (lambda torch, x: torch.amax(x, 0), 2),
        (lambda torch, x: torch.max(x, dim=0), 16),
        (lambda torch, x: torch.argmin(x, -2), 16),
        (lambda torch, x: torch.any(x, 0), 2),
        (lambda torch, x: torch.var(x, 0), 16),
        (lambda torch, x: torch.std(x.double(), 0), 32),
        (lambda torch, x: torch.sum(x.int(), 0), 8),
        (lambda torch, x: torch.cumsum(x, 0), 0),
        (lambda torch, x: x + x, 0),
    ],
)
def test_partial_results_are_as_wide_as_the_kernel_keeps_them(call, partial):
    torch = pytest.importorskip("torch")
    dispatch = pytest.importorskip("torch.utils._python_dispatch")
    found = []

    class Seen(dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            found.append(
                kernels.buffers(func, args, kwargs or {}, [*out] if isinstance(out, tuple) else [out], H100)
            )
            return out

    with Seen():
        call(torch, torch.empty(8192, 1000, dtype=torch.bfloat16, device="meta"))
    expected = rows_summed(8192, 1000, partial=partial) if partial else ()
    assert found[-1][-len(expected) or None :] == expected
    # The kernel itself widens halves to float32; an input of another type is first copied into that of the
    # result.
    assert found[-1][: len(found[-1]) - len(expected)] == (8192 * 1000 * 8,) * (partial == 8)
