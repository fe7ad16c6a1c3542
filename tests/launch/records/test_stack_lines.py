"""How often each source line of the program was on the stack."""

from __future__ import annotations

from dynotune.launch.records.stack_lines import stack_lines
from dynotune.schema.document import convert
from dynotune.schema.events import Moments
from dynotune.schema.host import StackLine

MOMENTS = {
    "frames": ["train.py(60): main", "net.py(45): forward", "net.py(22): cell", "train.py(63): main"],
    "texts": ["out = net(x)", "h = self.cell(x[t], h)", "return h @ w", "loss.backward()"],
    "stacks": [[0, 1, 2], [0, 1], [3], [0, 1, 1]],
    "seen": [[0, 5], [0, 5], [1, 5], [2, 6], [3, 6]],
}


def test_stack_lines_count_each_sample_once_when_a_line_stands_twice_on_a_stack() -> None:
    assert stack_lines(convert(MOMENTS, Moments)) == [
        StackLine(function="train.py(60): main", text="out = net(x)", callee="net.py(45): forward", num=4),
        StackLine(
            function="net.py(45): forward", text="h = self.cell(x[t], h)", callee="net.py(22): cell", num=4
        ),
        StackLine(function="net.py(22): cell", text="return h @ w", num=2),
        StackLine(function="train.py(63): main", text="loss.backward()", num=1),
    ]


def test_stack_lines_are_empty_when_nothing_was_seen() -> None:
    assert stack_lines(convert(MOMENTS | {"seen": []}, Moments)) == []
