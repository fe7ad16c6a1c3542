"""Run the user's command, and draw conclusions from the runs.

`live/` starts the command and carries out tasks in the running program. `bench/` has arms take turns, and
decides a comparison by the statistics of `comparison/`. `startup/` times starts, and `checks/` compares
results. Other rooms import from these five packages.

`launch` starts processes and reads their records. `search` chooses the candidates, and `diagnose` finds out
why a command is slow.
"""

__all__ = []
