"""Runs of the user's command, and what may be concluded from them.

`live/` starts the command and carries out tasks in it, `comparison/` compares two arms, `startup/` times starts,
`checks/` compares the results of two arms. Other rooms import from these four.

Starting a process and reading its records is `launch`'s. Which arms are worth comparing is decided in `search`, and
why a command is slow in `diagnose`.
"""

__all__ = []
