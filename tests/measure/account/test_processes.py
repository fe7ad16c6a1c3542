"""Of several processes, the one that makes the steps is accounted for, and those that started it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynotune.launch.records.record import Record, Step
from dynotune.measure.account.processes import lives, main_record, turns

from ...fakes import take


def process(pid, began_s, *, ppid=None, ended_s=None, steps=0, rank=None) -> Record:
    made = Record(Path(f"process-{pid}-0.rec"), pid, began_s + 0.1, [], {}, {})
    made.steps += [Step(began_s + 1 + at, 0.0, 1, 0) for at in range(steps)]
    take(made, {"event": "starting_process", "started_s": began_s})
    if ppid is not None:
        take(made, {"event": "process", "pid": pid, "ppid": ppid, "rank": rank})
    if ended_s is not None:
        take(made, {"event": "exit", "at_s": ended_s})
    return made


def owners(records, ended_s=20.0):
    main = main_record(records)
    found = turns(lives(records, main, 0.0, ended_s), 0.0, ended_s)
    return [(begin_s, end_s, None if life is None else life.record.pid) for begin_s, end_s, life in found]


def test_turns_go_to_the_first_rank_and_before_and_after_it_to_its_launcher():
    launcher = process(1, 0.1, ppid=0, ended_s=19.0)
    ranks = [process(10 + rank, 3.0, ppid=1, ended_s=15.0, steps=5, rank=rank) for rank in (1, 0)]
    assert owners([launcher, *ranks]) == [(0.0, 3.0, 1), (3.0, 15.0, 10), (15.0, 20.0, 1)]


def test_turns_go_to_the_program_that_replaced_another_in_its_process():
    before, after = process(1, 0.1, ppid=0), process(1, 0.1, ppid=0, ended_s=19.0, steps=5)
    after.start_s = 4.0
    take(after, {"event": "span", "phase": "agent", "begin_s": 3.9, "end_s": 4.0})
    assert owners([before, after]) == [(0.0, 3.9, 1), (3.9, 20.0, 1)]


def test_turns_go_to_programs_that_a_script_ran_before():
    first = process(1, 0.1, ppid=0, ended_s=5.0)
    second = process(2, 6.0, ppid=0, ended_s=18.0, steps=5)
    assert owners([first, second]) == [(0.0, 5.0, 1), (5.0, 6.0, None), (6.0, 20.0, 2)]


def test_main_record_is_the_first_process_when_none_made_steps():
    assert main_record([process(2, 3.0, ppid=1), process(1, 0.1, ppid=0)]).pid == 1
    assert main_record([]) is None


@pytest.mark.parametrize("ended_s", [2.0, 10.0])
def test_turns_cover_the_time_once_when_the_command_ended_early(ended_s):
    found = owners([process(1, 0.1, ppid=0), process(2, 1.0, ppid=1, steps=5)], ended_s)
    assert sum(end_s - begin_s for begin_s, end_s, _ in found) == pytest.approx(ended_s)


def test_turns_go_to_programs_that_a_shell_runs_after_and_the_rest_to_none():
    first = process(1, 0.1, ppid=7, ended_s=5.0, steps=3)
    second = process(2, 6.0, ppid=7, ended_s=18.0)
    assert owners([first, second]) == [
        (0.0, 5.0, 1), (5.0, 6.0, None), (6.0, 18.0, 2), (18.0, 20.0, None)
    ]  # fmt: skip


def test_the_rest_of_a_shell_command_is_no_process_of_its_own():
    first = process(1, 0.1, ppid=7, ended_s=5.0, steps=3)
    found = turns(lives([first], first, 0.0, 20.0, by_shell=True), 0.0, 20.0)
    assert [(begin_s, end_s, life is None) for begin_s, end_s, life in found] == [
        (0.0, 5.0, False), (5.0, 20.0, True)
    ]  # fmt: skip
