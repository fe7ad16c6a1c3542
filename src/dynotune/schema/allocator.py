"""The caching allocator of one device, as the agent read it."""

import msgspec


class Allocator(msgspec.Struct, frozen=True, kw_only=True):
    """The caching allocator of one device: levels at the timed window's end, and growth of counters in the
    window.

    Args:
        allocated_growth_bytes: allocated bytes at the window's end minus allocated bytes at the window's
            begin.
        allocated_levels_bytes: allocated bytes at the ends of steps spread evenly over the window, including
            both window ends; [] if only the window ends are known.
    """

    device: int
    total_bytes: int
    allocated_bytes: int
    allocated_growth_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_alloc_retries: int
    num_ooms: int
    num_device_allocations: int
    num_device_frees: int
    allocated_levels_bytes: list[int] = []
