"""In the place of torchrun, whose own start and whose ranks' take longest: a program's ranks are forks of this process.

Arguments: how many ranks, the program, its arguments. Exits with the first rank that failed.
"""

import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist


def main():
    size = int(sys.argv[1])
    ports = [os.pipe() for _ in range(size)]
    ranks = [os.fork() or become(rank, size, ports[rank][0]) for rank in range(size)]
    # Only now, as it has threads: the ranks meet at a port that it was given.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, told in ports:
        os.write(told, b"%d" % store.port)
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for rank in ranks:  # they would wait for it
                os.kill(rank, signal.SIGKILL)
            sys.exit(os.waitstatus_to_exitcode(status))


def become(rank, size, port):
    """Runs the program, as torchrun would have started it."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": os.read(port, 8).decode(),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    del sys.argv[:2]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    module = sys.modules["__main__"] = type(sys)("__main__")
    module.__file__ = sys.argv[0]
    exec(compile(Path(sys.argv[0]).read_bytes(), sys.argv[0], "exec"), vars(module))
    sys.exit()


if __name__ == "__main__":
    main()
