"""Records of frames whose times are known."""

from pathlib import Path

from dynotune.launch.records import Record
from dynotune.schema.events import FramesDone


def camera(
    name, *, fps=10.0, latency_s=0.02, from_s=5.0, until_s=25.0, growth=0.0, source="marked", samples=1,
    device_bytes=None, pooled=False,
):  # fmt: skip
    """Frames of one stream, each done `latency_s` after it was captured."""
    begins = [from_s + number / fps for number in range(int((until_s - from_s) * fps))]
    ends = [begin + latency_s + growth * (begin - from_s) for begin in begins]
    of_calls = source == "call"
    return FramesDone(
        source=source,
        streams=[name],
        models=["Net"],
        pooled=[0] * pooled,
        stream=[0] * len(begins),
        model=[0] * len(begins),
        begin_s=begins,
        end_s=ends,
        begin_cpu_s=[begin * 0.1 for begin in begins] if of_calls else [],
        end_cpu_s=[begin * 0.1 + 0.005 for begin in begins] if of_calls else [],
        num_samples=[samples] * len(begins),
        process_cpu_s=ends[-1] / 2,
        weights_bytes=100,
        peak_device_bytes=device_bytes,
    )


def record(*events, pid=1) -> Record:
    made = Record(path=Path("r"), pid=pid, start_s=0.0, events={}, results={})
    for event in events:
        made.add(event)
    return made
