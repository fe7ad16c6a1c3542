"""Start ranks of a program on this host: ranks.py 2 program.py ARGUMENTS

It does for them what torchrun does, without importing torch itself, which takes seconds of each start.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def main() -> None:
    num, program = int(sys.argv[1]), sys.argv[2:]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num)}
    env |= {"LOCAL_WORLD_SIZE": str(num), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    ranks = [
        subprocess.Popen([sys.executable, *program], env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(num)
    ]
    sys.exit(max(abs(rank.wait()) for rank in ranks))


if __name__ == "__main__":
    main()
