"""Run the user's command, and draw conclusions from the runs.

`live/` starts the command and carries out tasks in the running program, `comparison/` compares a candidate with the
baseline, `startup/` times starts, and `checks/` compares results. Other rooms import from these four packages.

`launch` starts processes and reads their records. `search` chooses the candidates, and `diagnose` finds out why a
command is slow.
"""

__all__ = []
