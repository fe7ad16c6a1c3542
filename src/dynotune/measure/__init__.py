"""Run the user's command, and draw conclusions from the runs.

`live/` starts the command and carries out tasks in it, `comparison/` compares a candidate with the baseline, `startup/`
times starts, and `checks/` compares their results. Other rooms import from these four.

`launch` starts processes and reads their records. `search` chooses the candidates, and `diagnose` finds out why a
command is slow.
"""

__all__ = []
