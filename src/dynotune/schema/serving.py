"""How a program serves frames of streams: who calls the model, and what a frame takes."""

from __future__ import annotations

from typing import Literal

import msgspec


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """What frames took in a window of a run, as far as marks and calls of models show.

    Args:
        source: what showed the frames: marks of the program, its threads, or the samples of all calls, where
            streams cannot be told apart.
        num_streams: streams that gave frames.
        frames_per_s: of all streams together.
        num_threads: threads that called the model; `num_calls`: how often; `samples_per_call`: the median of
            their samples.
        num_models: models that the process called so far, also those that are gone; `models_per_call`: of
            these, new ones in the window for each call.
        calls_at_once: number of calls of the model under way, on average over the time with at least one.
        call_share: share of time with a call of the model under way.
        call_s, call_cpu_s: time of a call, and CPU time of its thread in it, per frame; 0 without calls.
        alone_s, together_s: mean time of calls that met no other call, and of those that did; None without.
        growth_s, growth_low_s: by how much the latency of marked frames grows in a second, and the low end of
            its 95% interval; None without marks.
        further_sample_s: by how much a call with one more sample takes longer; None if all have as many.
        between_cpu_s: CPU time of the calling thread between its calls, per frame.
        busiest_thread: share of time in which the busiest calling thread computed.
        process_cores: cores that the busiest process used; `cores`: that all processes used.
        free_cores: cores that other programs left to the program, its own use included; None if unknown.
        cpu_s: CPU time of all processes per frame. `num_cores`: cores that the program may use.
        device_share: share of time in which the GPU worked, of the busiest; None without a GPU that tells.
        device_bytes: memory of torch's allocators; `host_bytes`: memory of the process tree.
    """

    source: Literal["marks", "threads", "samples"]
    num_streams: int
    frames_per_s: float
    num_threads: int = 0
    num_calls: int = 0
    num_models: int = 0
    models_per_call: float = 0.0
    samples_per_call: float = 1.0
    calls_at_once: float = 0.0
    call_share: float = 0.0
    call_s: float = 0.0
    call_cpu_s: float = 0.0
    between_cpu_s: float = 0.0
    alone_s: float | None = None
    together_s: float | None = None
    growth_s: float | None = None
    growth_low_s: float | None = None
    further_sample_s: float | None = None
    busiest_thread: float = 0.0
    process_cores: float | None = None
    cores: float | None = None
    free_cores: float | None = None
    cpu_s: float | None = None
    num_cores: float = 1.0
    device_share: float | None = None
    device_bytes: int | None = None
    host_bytes: int | None = None
    weights_bytes: int | None = None
    device_total_bytes: int | None = None
