"""A stream of results, its stages made up: what is left of it when nobody takes more."""

from __future__ import annotations

import gc
import threading

from dynotune.runtime.vision import pipeline


class Stages:
    def stage(self, frames):
        return frames

    def launch(self, staged):
        return staged

    def collect(self, launched):
        return launched

    def abandon(self, staged):
        pass

    def discard(self, launched):
        pass


def test_the_source_of_a_stream_that_is_left_early_is_released_with_it():
    released = []

    def camera():
        try:
            for number in range(20):
                yield [number], number
        finally:
            released.append(True)

    gc.collect()
    gc.disable()
    try:
        results = pipeline.run(Stages(), camera(), 2)
        assert next(results) == ([0], 0)
        ours = [thread for thread in threading.enumerate() if thread.name.startswith("dynotune-")]
        results.close()
        for thread in ours:
            thread.join()
        del results, thread, ours
        assert released == [True]
    finally:
        gc.enable()
