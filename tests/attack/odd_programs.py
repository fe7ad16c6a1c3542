"""Odd programs, each with what is odd about how it is started; they print what they see of it.

A program prints no time, process id or address: two runs of it say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Odd:
    """A command in a folder of its own.

    Args:
        program: of Python, written to `main.py` first.
        words: the command; `@python` stands for the interpreter, `{size}` for the bytes that much output is.
        shell: starts it, as `"$@"`.
        files: written beside it.
        needs: a module without which it is skipped.
        differs: what is documented to be otherwise: a pattern whose matches are taken out of both outputs,
            and why.
    """

    program: str = ""
    words: tuple[str, ...] = ("@python", "main.py")
    shell: str = '"$@"'
    stdin: bytes = b""
    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    terminal: bool = False
    needs: str = ""
    differs: tuple[str, str] = ("", "")


def _python(*options: str, program: str, **more: object) -> Odd:
    return Odd(program, ("@python", *options, "main.py"), **more)  # type: ignore[arg-type]


_SHOW = """
import os, sys
print(sys.argv, sys.orig_argv[1:], __name__, __file__, __spec__, sorted(vars(sys.modules["__main__"])))
print(sys.flags, [p for p in sys.path if "site-packages" not in p], sys.dont_write_bytecode, __doc__)
"""
_STAYS = (
    r"'[^']*/agent/bootstrap', ",
    "without site nothing takes the folder off the path, which has one file",
)
_TRAIN = """
import torch
torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 1))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers={workers})
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
if __name__ == "__main__":
    for epoch in range(2):
        for x, y in loader:
            optimizer.zero_grad(); loss = ((net(x) - y) ** 2).mean(); loss.backward(); optimizer.step()
            print(loss.item())
"""
_BOTH = "import sys\nfor n in range(99): print(n, file=(sys.stdout, sys.stderr)[n % 2])"
_EVERY_SIGNAL = """
import os, signal, sys, time
def note(number, frame):
    print("caught", number, flush=True)
    if number == signal.SIGTERM:
        sys.exit(9)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, note)
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM):
    os.kill(os.getpid(), number)
"""

PROGRAMS: dict[str, Odd] = {
    # How it ends.
    "exit code": Odd("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"),
    "exit with a text": Odd("import sys; sys.exit('no: \\xe9')"),
    "exit with 256 and more": Odd("import sys; sys.exit(259)"),
    "os._exit": Odd("import os; print('lost'); os._exit(7)"),
    "an exception": Odd("def f(n):\n    return 1 / n if n == 0 else f(n - 1)\nf(3)"),
    "an exception in a group": Odd("raise ExceptionGroup('many', [ValueError(1), KeyError(2)])"),
    "its own excepthook": Odd("import sys; sys.excepthook = lambda *a: print('hook', a[0].__name__); 1 / 0"),
    "too deep": Odd(
        "import sys\ndef f(n):\n    return f(n + 1)\ntry:\n    f(0)\nexcept RecursionError as e: print(e)"
    ),
    **{
        f"death by {name}": Odd(
            f"import os, signal; print('x', flush=True); os.kill(os.getpid(), signal.{name})"
        )
        for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGABRT", "SIGQUIT", "SIGPIPE", "SIGUSR2", "SIGHUP")
    },
    "segmentation fault": Odd("import ctypes; ctypes.string_at(0)"),
    "faulthandler": Odd(
        "import os, faulthandler; faulthandler.enable(); os.abort()",
        differs=("0x[0-9a-f]+", "the thread's address"),
    ),
    "Ctrl-C unhandled": Odd("import signal; signal.raise_signal(signal.SIGINT)"),
    "its own handlers": Odd(_EVERY_SIGNAL),
    "an alarm": Odd("import signal; signal.alarm(1); signal.pause()"),
    "a deaf program": Odd(
        "import signal; print([signal.getsignal(n) for n in (2, 1, 3, 13, 15)])",
        shell="trap '' HUP INT; \"$@\"",
    ),
    "atexit in order": Odd("import atexit\nfor n in range(3): atexit.register(print, n)\nprint('end')"),
    "threads at exit": Odd(
        "import threading, time, atexit\natexit.register(print, 'atexit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint('main')"
    ),
    "a daemon thread": Odd(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    ),
    "an exception in a thread": Odd(
        "import threading; threading.Thread(target=lambda: 1 / 0, name='t').start()"
    ),
    "objects that die late": Odd(
        "class A:\n    def __del__(self): print('gone', __name__)\na = A(); import sys; sys.keep = A()"
    ),
    # What goes in and out.
    "both streams": Odd(_BOTH),
    "one stream": Odd(_BOTH, shell='"$@" 2>&1'),
    "stdin": Odd("import sys; print(sys.stdin.read()[::-1], input.__name__)", stdin=b"to be read\n"),
    "input": Odd("print(input('name? ') + input())", stdin=b"a\nb"),
    "no more input": Odd("input()"),
    "binary": Odd(
        "import sys; sys.stdout.buffer.write(bytes(range(256)) + sys.stdin.buffer.read())",
        stdin=b"\xff\0\r\n",
    ),
    "much output": Odd(
        "import os, sys\nfor n in range(int(sys.argv[1]) >> 16): os.write(1, bytes([n % 251]) * 65536)",
        ("@python", "main.py", "{size}"),
        shell='"$@" | sha256sum; echo "${PIPESTATUS[0]}"',
    ),
    "a reader that leaves": Odd(words=("yes",), shell='"$@" | head -n 2; echo "${PIPESTATUS[0]}"'),
    "a reader that leaves Python": Odd(
        "for n in range(10**6): print(n)", shell='"$@" | head -n 2; echo "${PIPESTATUS[0]}"'
    ),
    "a full device": Odd("print('x' * 9999)", shell='"$@" > /dev/full'),
    "a closed stdin": Odd("import sys, os; print(sys.stdin, os.open('main.py', 0))", shell='"$@" <&-'),
    "a closed stdout": Odd("import sys; print('x'); print(sys.stdout, file=sys.stderr)", shell='"$@" >&-'),
    "a closed stderr": Odd("import sys; print(sys.stderr); print('x', file=sys.stderr)", shell='"$@" 2>&-'),
    "all closed": Odd("open('made', 'w').write(repr(__import__('sys').stdout))", shell='"$@" <&- >&- 2>&-'),
    "descriptors it was given": Odd(
        "import os; print(sorted(os.listdir('/proc/self/fd')), os.read(8, 9))",
        shell='"$@" 8< <(echo given) 9>made',
    ),
    "a terminal": Odd(
        "import os, sys\nprint([os.isatty(n) for n in range(3)], os.get_terminal_size())\n"
        "print(os.tcgetpgrp(0) == os.getpgrp())\nprint(input('> '))",
        stdin=b"typed\n",
        terminal=True,
    ),
    "a password": Odd("import getpass; print(len(getpass.getpass()))", stdin=b"hidden\n", terminal=True),
    "unbuffered": _python("-u", program="import os; print(1); os._exit(0)"),
    "C locale": Odd("import sys; print('\\xe9', sys.stdout.encoding, ascii(sys.argv))", env={"LC_ALL": "C"}),
    "no UTF-8": _python(
        "-X", "utf8=0", program="print('\\xe9')", env={"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    ),
    "its own encoding": Odd("print('\\xe9')", env={"PYTHONIOENCODING": "latin-1"}),
    # The interpreter.
    **{
        f"python {option}": _python(
            *option.split(), program=_SHOW, differs=_STAYS if option == "-S" else ("", "")
        )
        for option in (
            "-I",
            "-S",
            "-E",
            "-s",
            "-P",
            "-O",
            "-OO",
            "-B",
            "-b",
            "-u",
            "-q",
            "-R",
            "-x",
            "-X dev",
            "-W error",
            "-X frozen_modules=off",
            "-X int_max_str_digits=0",
            "-X utf8",
        )
    },
    "importtime": _python(
        "-X",
        "importtime",
        program="print(1)",
        differs=(r"import time:.*\n", "it lists the agent's modules too"),
    ),
    "from stdin": Odd(words=("@python", "-"), stdin=_SHOW.replace("__file__", "0").encode()),
    "from stdin, without a word": Odd(words=("@python",), stdin=b"print(__name__)"),
    "-c": Odd(words=("@python", "-c", "import sys; print(sys.argv, sys.path[0] == '', __name__)", "a", "")),
    "-m package": Odd(
        words=("@python", "-m", "pkg", "x"),
        files={"pkg/__init__.py": "", "pkg/__main__.py": _SHOW + "print(__package__)"},
    ),
    "-m module of the library": Odd(words=("@python", "-m", "json.tool"), stdin=b'{"a":1}'),
    "-m unittest": Odd(
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.fail('so')",
        ("@python", "-m", "unittest", "main"),
        differs=(r"in [\d.]+s", "the time it took"),
    ),
    "-m pdb": Odd("x = 1\nprint(x)", ("@python", "-m", "pdb", "main.py"), stdin=b"n\nn\np x\nq\n"),
    "-m trace": Odd("for n in range(3): n", ("@python", "-m", "trace", "--count", "-C", "counts", "main.py")),
    "-i": Odd("x = 41", ("@python", "-i", "main.py"), stdin=b"print(x + 1)\n"),
    "a folder": Odd(words=("@python", "app"), files={"app/__main__.py": _SHOW, "app/part.py": ""}),
    "a zipapp": Odd(
        words=("@python", "app.pyz", "y"),
        files={"app/__main__.py": _SHOW},
        shell='"$1" -m zipapp app 2>&1 && "$@"',
    ),
    "a script with a shebang": Odd(words=("./s.py", "z"), files={"s.py": "#!/usr/bin/env python3\n" + _SHOW}),
    "words that are odd": Odd(
        _SHOW, ("@python", "main.py", "", " ", "--", "--help", "{run_dir}", "\udcff", "a\nb", "-c")
    ),
    "coverage": Odd("print(1)", ("@python", "-m", "coverage", "run", "main.py"), needs="coverage"),
    "settrace": Odd(
        "import sys\nseen = []\nsys.settrace(lambda f, e, a: seen.append((f.f_code.co_name, e)))\ndef f(): "
        "pass\n"
        "f()\nsys.settrace(None)\nprint(seen, sys.getprofile())"
    ),
    "monitoring": Odd(
        "import sys\nif hasattr(sys, 'monitoring'): print([sys.monitoring.get_tool(n) for n in "
        "range(6)])\nprint(1)"
    ),
    "hooks of the interpreter": Odd(
        "import builtins, gc, signal, sys, threading, warnings\nprint(sys.gettrace(), sys.getprofile(), "
        "sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, "
        "threading.excepthook.__name__, "
        "builtins.__import__.__name__, gc.isenabled(), gc.get_threshold(), gc.callbacks, "
        "sys.getrecursionlimit(), "
        "sys.getswitchinterval(), [t.name for t in threading.enumerate()], len(warnings.filters), "
        "signal.getsignal(2), "
        "sys.unraisablehook is sys.__unraisablehook__, len(sys.path_hooks), 'sitecustomize' in sys.modules)"
    ),
    # dynotune is a Python program too: a sitecustomize on PYTHONPATH runs in it as well.
    "its own sitecustomize": Odd(
        "import sitecustomize; print(sitecustomize.__file__)",
        env={"PYTHONPATH": "lib"},
        files={"lib/sitecustomize.py": "print('customized')"},
        differs=(r"customized\n", "dynotune runs it too"),
    ),
    "a sitecustomize that fails": Odd(
        "print(1)",
        env={"PYTHONPATH": "lib"},
        files={"lib/sitecustomize.py": "import nowhere"},
        differs=(r"Error in sitecustomize[\s\S]*", "dynotune runs it too"),
    ),
    "modules named as ours": Odd(
        "import agent, attach, core, dynotune, hooks, json, steps; print(json.x, dynotune.x, steps.__file__)",
        files={
            f"{name}.py": "x = 1"
            for name in ("agent", "attach", "core", "dynotune", "hooks", "json", "steps")
        },
    ),
    "an own PYTHONPATH": Odd("import sys; print(sys.path[1:3])", env={"PYTHONPATH": "a:../b:"}),
    "bytecode": Odd("import part; print(part.x)", files={"part.py": "x = 1"}, shell='"$@"; ls -R'),
    "tracemalloc": _python(
        "-X", "tracemalloc", program="import tracemalloc; print(tracemalloc.is_tracing())"
    ),
    "hash seed": Odd("print(hash('a'), list({'a', 'b', 'c'}))", env={"PYTHONHASHSEED": "0"}),
    "random": Odd("import random; random.seed(1); print(random.random(), __import__('uuid').UUID(int=1))"),
    "asyncio": Odd(
        "import asyncio\nasync def main():\n    p = await asyncio.create_subprocess_exec('echo', 'hi', "
        "stdout=-1)\n"
        "    print((await p.communicate())[0], await asyncio.to_thread(int, 7))\nasyncio.run(main(), "
        "debug=True)"
    ),
    "asyncio and Ctrl-C": Odd(
        "import asyncio, signal\nasync def main():\n    try:\n        signal.raise_signal(2); await "
        "asyncio.sleep(9)\n"
        "    finally:\n        print('cleaned')\nasyncio.run(main())"
    ),
    "uvloop": Odd("import uvloop, asyncio; uvloop.run(asyncio.sleep(0)); print(1)", needs="uvloop"),
    # Processes.
    **{
        f"multiprocessing {how}": Odd(
            "import multiprocessing as m\ndef f(n): return n * n, m.current_process().name[:4]\n"
            f"if __name__ == '__main__':\n    with m.get_context('{how}').Pool(2) as p: print(p.map(f, "
            "range(5)))"
        )
        for how in ("fork", "spawn", "forkserver")
    },
    "a process pool": Odd(
        "import concurrent.futures as c\ndef f(n): return n + 1\nif __name__ == '__main__':\n"
        "    with c.ProcessPoolExecutor(2) as p: print(list(p.map(f, range(5))))"
    ),
    "shared memory": Odd(
        "from multiprocessing import shared_memory as s\nm = s.SharedMemory(create=True, size=9); m.buf[0] "
        "= 7\n"
        "print(m.buf[0]); m.close(); m.unlink()"
    ),
    "os.execv": Odd(
        "import os, sys\nif len(sys.argv) < 3: print('first', flush=True); "
        "os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])\nprint(sys.argv)"
    ),
    "exec without an environment": Odd("import os, sys; os.execve('/usr/bin/env', ['env'], {})"),
    "double fork": Odd(
        "import os, time\nprint('a', flush=True)\nr, w = os.pipe()\nif os.fork() == 0:\n    os.setsid()\n    "
        "if os.fork(): os._exit(0)\n    os.close(r); print('daemon', os.getppid() != 0, flush=True); "
        "os._exit(0)\n"
        "os.wait(); os.close(w); os.read(r, 1); print('b')"
    ),
    "fork that forgets to exit": Odd(
        "import os\npid = os.fork()\nif pid: os.wait()\nprint('child' if not pid else 'parent')"
    ),
    "Python in Python": Odd(
        "import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', 'import sys; "
        "print(sys.flags)']))"
    ),
    "its parents and groups": Odd(
        "import os; print(os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid(), os.getppid() > 0)\n"
        "print([l for l in open('/proc/self/status') if l[:4] in ('SigB', 'SigI', 'SigC', 'NoNe', 'CapE')])",
        shell='"$@"; exit $?',
    ),
    # What it finds.
    "environment": Odd(
        words=("env",),
        shell='"$@" | sort',
        env={"ODD": "a\nb", "EMPTY": "", "PYTHONPATH": "x"},
        differs=(
            r"DYNOTUNE_RUN=.*\n|(?<=PYTHONPATH=)[^:\n]*/bootstrap:|^_=.*\n",
            "two variables hold the agent's place",
        ),
    ),
    "os.environ": Odd("import os; print(sorted(set(os.environ) - {'DYNOTUNE_RUN', 'PYTHONPATH', '_'}))"),
    "limits": Odd(
        words=("bash", "-c", "ulimit -a; nice; umask"),
        shell='ulimit -n 77 -c 0 -s 4096; umask 027; nice -n 3 "$@"',
    ),
    "few descriptors": Odd("print(open('main.py').fileno())", shell='ulimit -n 24; "$@"'),
    "little memory": Odd(
        "try: bytes(1 << 31)\nexcept MemoryError: print('none')", shell='ulimit -v 2000000; "$@"'
    ),
    "processor affinity": Odd("import os; print(os.sched_getaffinity(0))", shell='taskset -c 0 "$@"'),
    "a folder by a link": Odd(
        "import os; print(os.getcwd(), os.environ['PWD'])", shell='ln -s . l && cd l && "$@"'
    ),
    "a folder that is gone": Odd(
        words=("@python", "-c", "import os\ntry: os.getcwd()\nexcept OSError as e: print(e)"),
        shell='mkdir g; cd g; rmdir ../g; "$@"; true',
        differs=(r"[\s\S]+", "it is said, and the command is not started"),
    ),
    "files it writes": Odd(
        "import os\nos.umask(0o027)\nopen('a', 'wb').write(b'\\0' * 10); os.symlink('a', 'l'); "
        "os.makedirs('d/e'); "
        "os.chmod('a', 0o604); os.mkfifo('p'); open(b'\\xff', 'w').write('x'); os.rename('d', 'f')"
    ),
    "no such command": Odd(
        words=("command-of-nobody",),
        shell='"$@"; true',
        differs=(r"[\s\S]+", "its exit code is 2, where a shell says 127"),
    ),
    "a script without a shebang": Odd(words=("./s",), files={"s": "echo $0 $#; exit 5\n"}),
    "a shell that traps": Odd(words=("bash", "-c", "trap 'echo got; exit 4' TERM; kill $$; sleep 9")),
    # torch.
    "torch": Odd(_TRAIN.format(workers=0) + "    torch.save(net.state_dict(), 'net.pt')\n", needs="torch"),
    "torch with workers": Odd(_TRAIN.format(workers=2), needs="torch"),
    "torch objects": Odd(
        _TRAIN.format(workers=0) + "    print(sorted(net.state_dict()), optimizer, "
        "sorted(vars(net)), sorted(vars(optimizer)), type(loader).__mro__, net._forward_hooks)\n",
        needs="torch",
    ),
    "torch and an exception": Odd(
        "import torch\nnet = torch.nn.Linear(2, 2)\nfor n in range(5): net(torch.ones(1, "
        "2)).sum().backward()\n"
        "net(torch.ones(1, 3))",
        needs="torch",
        differs=(
            r"  File .*/(module|fast_paths)\.py.*\n.*\n( *\^+\n)?",
            "a frame of ours stands for one of torch's",
        ),
    ),
}
