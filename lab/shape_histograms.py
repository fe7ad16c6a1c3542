"""Ten histograms of shapes as programs have them: video, mixed cameras, text. Drawn with seeds, so that they
stay."""

from __future__ import annotations

import numpy as np

from dynotune.schema.engine_plan import Calls, ShapeHistogram


def histogram(*shapes, num=None):
    """Make calls with one input, or with a dict of them."""
    named = [shape if isinstance(shape, dict) else {"x": list(shape)} for shape in shapes]
    return ShapeHistogram(calls=[Calls(num[at] if num else 1, one) for at, one in enumerate(named)])


def _lengths(seed, median, spread, most, num=2000):
    drawn = np.random.default_rng(seed).lognormal(np.log(median), spread, num)
    return np.clip(drawn, 4, most).astype(int)


def video_with_a_last_batch():
    return histogram((32, 3, 360, 640), (5, 3, 360, 640), num=[30, 90])


def video_of_live_streams():
    """So many streams have a frame at a time."""
    waiting = np.random.default_rng(1).binomial(16, 0.25, 1000) + 1
    return histogram(*((int(batch), 3, 640, 640) for batch in waiting))


def clips_of_all_lengths():
    return histogram(*((1, 3, int(frames), 112, 112) for frames in _lengths(2, 24, 0.7, 256)))


def cameras_of_three_kinds():
    return histogram((1, 3, 480, 640), (1, 3, 720, 1280), (1, 3, 1080, 1920), num=[500, 300, 100])


def cameras_upright_and_lying():
    sizes = [(480, 640), (640, 480), (720, 1280), (1280, 720), (1080, 1920), (1920, 1080)]
    return histogram(*((1, 3, *size) for size in sizes), num=[50, 400, 30, 200, 20, 10])


def cameras_and_crops_of_all_sizes():
    drawn = np.random.default_rng(3)
    crops = [(int(n), 3, 64, 64) for n in drawn.integers(1, 33, 400)]
    return histogram(*crops, *((1, 3, 1080, 1920) for _ in range(100)))


def text_one_at_a_time():
    return histogram(*({"ids": [1, int(n)], "mask": [1, int(n)]} for n in _lengths(4, 40, 0.8, 512)))


def text_in_batches():
    drawn = np.random.default_rng(5)
    pairs = zip(drawn.integers(1, 17, 2000), _lengths(6, 64, 0.7, 512) // 8 * 8 + 8, strict=True)
    return histogram(*({"ids": [int(b), int(n)], "mask": [int(b), int(n)]} for b, n in pairs))


def text_of_questions_and_documents():
    return histogram(*((8, int(n)) for n in [*_lengths(7, 16, 0.3, 64), *_lengths(8, 900, 0.2, 2048, 200)]))


def text_translated():
    """The decoder's input grows by one, up to what the encoder's was."""
    calls = [
        {"source": [1, int(n)], "target": [1, at]}
        for n in _lengths(9, 20, 0.5, 64, 100)
        for at in range(1, n)
    ]
    return histogram(*calls)


TEN = [
    *(video_with_a_last_batch, video_of_live_streams, clips_of_all_lengths),
    *(cameras_of_three_kinds, cameras_upright_and_lying, cameras_and_crops_of_all_sizes),
    *(text_one_at_a_time, text_in_batches, text_of_questions_and_documents, text_translated),
]
