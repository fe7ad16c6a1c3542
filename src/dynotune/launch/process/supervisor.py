"""Run between dynotune and the command, and end all processes of the command, whatever happens.

The supervisor is a subreaper, so it adopts every orphan of the command. When its socket to dynotune breaks,
dynotune is gone. The supervisor's standard streams are the command's. The supervisor starts without
site-packages (`-I -S`), sleeps while the command runs, and exchanges JSON messages, one a line:

    dynotune says     order (the first line) · {"signal": n} · {"end": grace_s}
    supervisor says   {"pid": p} or {"failed": step, …} · {"stopped": n} · {"exit": code, "cpu_s": …, …}
"""

import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any, NoReturn

from dynotune.launch.process import overlay, processes
from dynotune.launch.process.inboxes import FROM_OUTSIDE, Messages, SignalInbox

_LEFTOVER_GRACE_S = 1.0
_TOLD_TO_END_GRACE_S = 5.0
_SAME_SIGNAL_S = 0.1
_WITNESS_WAIT_S = 0.02
_KILL_AGAIN_S = 0.05
_LOOK_AGAIN_S = 0.05
_GIVE_UP_ON_FOREIGN_S = 5.0
_START_S = 60.0


def main(control_descriptor: int) -> None:
    """Serve one order, then return. `control_descriptor` is the supervisor's end of the socket pair."""
    control = socket.socket(fileno=control_descriptor)
    control.set_inheritable(False)
    # Signals sent to the group before the inbox exists stay pending, because dynotune blocked them.
    with SignalInbox([*FROM_OUTSIDE, signal.SIGCHLD]) as inbox:
        messages = Messages(control)
        order = messages.wait_for_one()
        if order is None:
            return
        processes.become_subreaper()
        lease = order["lease"]
        if lease["descriptor"] is not None:
            os.set_inheritable(lease["descriptor"], False)
        supervisor = Supervisor(order, messages, inbox)
        if supervisor.start():
            supervisor.serve()
        if order["view"]:
            # Keep the copies until dynotune has read them, or has ended.
            while messages.wait_for_one() is not None:
                pass
            overlay.remove(order["view"]["scratch"])
        if lease["descriptor"] is not None:
            with contextlib.suppress(OSError):
                os.unlink(lease["path"])


class Supervisor:
    """One command and all of its processes."""

    def __init__(self, order: dict[str, Any], messages: Messages, inbox: SignalInbox) -> None:
        self._order = order
        self._messages = messages
        self._inbox = inbox
        self._dynotune = os.getppid()
        self._command = 0
        self._exit: dict[str, int] | None = None
        self._kill_at_s: float | None = None
        self._childless = False
        self._is_told = False
        self._stopped, self._stopped_by = False, 0
        self._refused_since_s: float | None = None
        self._left: list[int] = []
        self._witnessed_s: dict[int, float] = {}
        self._to_forward: list[tuple[float, int]] = []

    def start(self) -> bool:
        """Start the command and report its process id; on failure report the failed step and return False."""
        read_end, write_end = os.pipe()
        us = os.getpid()
        missed = signal.sigpending()
        try:
            group = _new_group() if self._order["own_group"] else 0
            self._command = os.fork()
        except OSError as error:
            self._messages.send({"failed": "fork", "errno": error.errno, "why": str(error)})
            return False
        if self._command == 0:
            _become_command(self._order, supervisor=us, failure=write_end, group=group)
        if group:
            with contextlib.suppress(
                PermissionError, ProcessLookupError
            ):  # the command has executed: it is a member
                os.setpgid(self._command, group)
            # Reap the group's first process only now that the command has joined: a process group exists only
            # while it has members.
            _reap_leader(group)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._take_signals()
        for number in missed:
            # The signal went to the group before the command joined the group.
            self._witnessed_s.pop(number, None)
        os.close(write_end)
        with open(read_end, "rb") as pipe:
            if not select.select([pipe], [], [], _START_S)[0]:
                processes.kill_all(us)
                self._messages.send({"failed": "hang", "errno": errno.ETIMEDOUT, "why": ""})
                return False
            failure = pipe.read()
        if failure:
            # The command may have ended before the signals were read, and was then reaped with them.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._command, 0)
            self._messages.send(json.loads(failure))
            return False
        self._messages.send({"pid": self._command})
        self._is_told = True
        if self._stopped:
            self._messages.send({"stopped": self._stopped_by})
        return True

    def serve(self) -> None:
        """Serve until all processes of the command have ended; a foreground command's background processes
        may stay."""
        poll = select.poll()
        poll.register(self._inbox.fileno(), select.POLLIN)
        poll.register(self._messages.fileno(), select.POLLIN)
        while not self._over():
            poll.poll(self._timeout_ms())
            self._take_signals()
            for message in [] if self._messages.broken else self._messages.take():
                self._obey(message)
            if self._messages.broken:
                with contextlib.suppress(KeyError):
                    poll.unregister(self._messages.fileno())
                self._end(grace_s=0.0)
            self._forward_due()
            self._kill_due()
        self._report()

    def _over(self) -> bool:
        if self._exit is not None and not self._order["end_the_rest"] and self._kill_at_s is None:
            return True
        return self._childless or bool(self._left)

    def _timeout_ms(self) -> float | None:
        due = [at_s for at_s, _ in self._to_forward]
        if self._kill_at_s is not None:
            due.append(max(self._kill_at_s, time.monotonic() + _KILL_AGAIN_S))
        return max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None

    def _take_signals(self) -> None:
        for number in self._inbox.take():
            if number == signal.SIGCHLD:
                self._reap()
            elif not self._order["end_the_rest"]:
                self._witnessed_s[number] = time.monotonic()
            elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                self._end(_TOLD_TO_END_GRACE_S)

    def _reap(self) -> None:
        what = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while (child := os.waitid(os.P_ALL, 0, what)) is not None:
                if child.si_pid == self._command:
                    self._command_changed(child.si_code, child.si_status)
            return
        self._childless = True

    def _command_changed(self, code: int, status: int) -> None:
        if code == os.CLD_STOPPED:
            self._stopped = True
            # A command can stop before dynotune has learnt that it started, the first message.
            if self._is_told:
                self._messages.send({"stopped": status})
            else:
                self._stopped_by = status
        elif code == os.CLD_CONTINUED:
            self._stopped = False
            # Someone continued the command alone. Without this, the shell would not notice that its job goes
            # on.
            self._continue_dynotune()
        elif code != os.CLD_TRAPPED:
            self._exit = {"exit": status} if code == os.CLD_EXITED else {"signal": status}
            if self._order["end_the_rest"]:
                self._end(_LEFTOVER_GRACE_S)

    def _continue_dynotune(self) -> None:
        dynotune = processes.read(self._dynotune)
        if not self._order["end_the_rest"] and dynotune and dynotune.state in "Tt":
            processes.send(dynotune, signal.SIGCONT)

    def _obey(self, message: dict[str, Any]) -> None:
        if "end" in message:
            self._end(message["end"])
        elif message.get("signal") == signal.SIGCONT:
            if self._exit is None and (now := processes.read(self._command)) and now.state in "Tt":
                os.kill(self._command, signal.SIGCONT)
        elif "signal" in message:
            self._to_forward.append((time.monotonic() + _WITNESS_WAIT_S, message["signal"]))

    def _forward_due(self) -> None:
        """Forward signals that were sent to dynotune alone.

        The supervisor shares the process group of the command. A signal that also reached the supervisor went
        to the whole group, from the terminal or from `kill -- -PGID`, so the command has already received it.
        """
        now_s = time.monotonic()
        for due_s, number in list(self._to_forward):
            arrived_s = due_s - _WITNESS_WAIT_S
            witnessed_s = self._witnessed_s.get(number, float("-inf"))
            if witnessed_s > arrived_s - _SAME_SIGNAL_S:
                self._to_forward.remove((due_s, number))
            elif now_s >= due_s:
                self._to_forward.remove((due_s, number))
                if self._exit is None:
                    os.kill(self._command, number)

    def _end(self, grace_s: float) -> None:
        kill_at_s = time.monotonic() + grace_s
        if self._kill_at_s is None and grace_s > 0:
            for process in processes.descendants(os.getpid()):
                processes.send(process, signal.SIGTERM)
                processes.send(process, signal.SIGCONT)
        self._kill_at_s = kill_at_s if self._kill_at_s is None else min(self._kill_at_s, kill_at_s)

    def _kill_due(self) -> None:
        if self._kill_at_s is None or time.monotonic() < self._kill_at_s or self._childless:
            return
        refused = processes.kill_all(os.getpid())
        self._reap()
        if not refused:
            self._refused_since_s = None
        elif self._refused_since_s is None:
            self._refused_since_s = time.monotonic()
        elif time.monotonic() - self._refused_since_s > _GIVE_UP_ON_FOREIGN_S:
            self._left = sorted(refused)

    def _report(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = usage.ru_utime + usage.ru_stime
        self._messages.send({**(self._exit or {}), "cpu_s": cpu_s, "left": self._left})
        # The command was killed while it was suspended (SIGSTOP). dynotune is suspended too or is about to
        # be, and has not read this message yet: continue dynotune until it has.
        while self._stopped and not self._order["end_the_rest"] and not self._messages.broken:
            self._continue_dynotune()
            self._messages.wait_for_one(_LOOK_AGAIN_S)


def _new_group() -> int:
    """Make a process group by a child that has ended and is not reaped yet; return the group's id.

    The command joins the group as a member: a process that leads a group or a session may begin no session,
    and the leader of a session no group. A signal that the command sends to its group does not reach the
    supervisor.
    """
    leader = os.fork()
    if leader == 0:
        os._exit(0)
    os.setpgid(leader, leader)
    return leader


def _reap_leader(leader: int) -> None:
    # It may have been stopped before it ended, and the supervisor would wait for it, deaf to all else.
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)


def _become_command(order: dict[str, Any], *, supervisor: int, failure: int, group: int) -> NoReturn:
    """Become the command in the child process, with signals and limits as dynotune found them.

    `group`: id of the process group to join; 0 stays in the supervisor's.
    """
    step = "preparing"
    try:
        if group:
            os.setpgid(0, group)
        if order["view"]:
            step = "sandbox"
            overlay.enter(overlay.View(**order["view"]))
        step = "cwd"
        os.chdir(order["cwd"])
        step = "preparing"
        # Set this after entering the namespaces, because a change of credentials clears it.
        processes.die_with_parent()
        if os.getppid() != supervisor:
            os._exit(127)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            ignored = number in order["ignored"]
            signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, order["blocked"])
        os.nice(order["nice"])
        step = "exec"
        _exec(order["executable"], order["command"], order["env"])
    except Exception as error:
        message = {"failed": step, "errno": getattr(error, "errno", None), "why": str(error)}
        os.write(failure, json.dumps(message).encode())
    finally:
        os._exit(127)


def _exec(executable: str, command: list[str], env: dict[str, str]) -> NoReturn:
    try:
        os.execve(executable, command, env)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A shell runs a script without `#!` itself; execvp(3) passes it to sh.
    os.execve("/bin/sh", ["sh", executable, *command[1:]], env)


if __name__ == "__main__":
    main(int(sys.argv[1]))
