"""Times the window: the device is synchronised at its two ends and nowhere else."""

from time import perf_counter


class Window:
    """Begins after `warmup_steps` steps and ends `num_steps` later.

    Args:
        prepare: called before it begins, outside the timed part.
        complete: called as `complete(fields)` when it has ended.
    """

    def __init__(self, warmup_steps, num_steps, prepare, complete):
        self._warmup_steps, self._num_steps = warmup_steps, num_steps
        self._prepare, self._complete = prepare, complete
        self._torch = None
        self._first_step = None
        self._begin_s = 0.0
        self._num_samples, self._wait_s = 0, 0.0
        self._counters = {}
        self.num_compilations = 0
        self.done = num_steps is None

    @property
    def has_begun(self):
        return self._first_step is not None

    def torch_is_here(self, torch):
        self._torch = torch

    def step_ended(self, index, wait_s, num_samples):
        """A step has ended; to be called for live steps only."""
        if self.done:
            return
        if self._first_step is None:
            if index + 1 >= self._warmup_steps:
                self._begin(index + 1)
            return
        self._wait_s += wait_s
        if num_samples < 0 or self._num_samples < 0:
            self._num_samples = -1
        else:
            self._num_samples += num_samples
        if index + 1 == self._first_step + self._num_steps:
            self._end()

    def _begin(self, first_step):
        self._prepare()
        self._first_step = first_step
        self._counters = self._read_counters()
        self._synchronise()
        self._begin_s = perf_counter()

    def _end(self):
        self._synchronise()
        end_s = perf_counter()
        self.done = True
        counters = self._read_counters()
        allocations = counters["num_device_allocations"]
        self._complete(
            {
                "first_step": self._first_step,
                "num_steps": self._num_steps,
                "begin_s": self._begin_s,
                "end_s": end_s,
                "num_samples": self._num_samples if self._num_samples >= 0 else None,
                "wait_s": self._wait_s,
                "num_compilations": counters["num_compilations"] - self._counters["num_compilations"],
                "num_device_allocations": None
                if allocations is None
                else allocations - self._counters["num_device_allocations"],
            }
        )

    def _synchronise(self):
        if self._torch is not None and self._torch.cuda.is_initialized():
            self._torch.cuda.synchronize()

    def _read_counters(self):
        return {
            "num_compilations": self.num_compilations,
            "num_device_allocations": device_allocations(self._torch),
        }


def device_allocations(torch):
    """cudaMalloc calls of this process so far; None without CUDA."""
    if torch is None or not torch.cuda.is_initialized():
        return None
    return sum(torch.cuda.memory_stats(index).get("num_device_alloc", 0) for index in range(torch.cuda.device_count()))
