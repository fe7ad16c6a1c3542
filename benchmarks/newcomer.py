"""Ten questions of a newcomer, each asked by the command that the README names, on small programs on the CPU.

    python benchmarks/newcomer.py [--only NAME] [--limit 300] [--out FILE]

For each: seconds until the answer, the exit code, and the line of the verdict; `answered` says whether that
line, or the report, names what is wrong with the program. A command is ended after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from lab import result_file

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs" / "newcomer"
OUT = HERE / "results" / "newcomer_cpu.json"


class Question(NamedTuple):
    """What a newcomer types, without `dynotune`; PYTHON stands for the interpreter. `answer`: what must be
    said."""

    typed: str
    answer: str


QUESTIONS = {
    "low utilisation": Question("diagnose -- PYTHON cnn.py", "num-workers-zero"),
    "how many workers": Question("tune --budget 3m -- PYTHON cnn.py", r"faster|undecided|no effect"),
    "Transformers' Trainer": Question("diagnose -- PYTHON hf.py", r"dataloader_num_workers"),
    "a GPT": Question("diagnose -- PYTHON gpt.py", r"optimizer\.fused=true"),
    "slow start": Question("startup time -- PYTHON hf.py", r"imports .*transformers"),
    "memory of another GPU": Question("memory --gpu H100-80GB -- PYTHON infer.py", r"GiB|MiB"),
    "latency that jitters": Question("diagnose -- PYTHON serve.py", "service-idle"),
    "is this variable bad": Question(
        "compare env.CUBLAS_WORKSPACE_CONFIG=@unset -- PYTHON loop.py", "not set, neither here nor by"
    ),
    "another batch": Question(
        "compare arg.b=32 --baseline arg.b=8 --budget 2m -- PYTHON loop.py --b {b}", "samples/s"
    ),
    "is bf16 safe": Question("precision --budget 2m -- PYTHON infer.py", r"bf16"),
}


def asked(question: Question, folder: Path, limit_s: float) -> dict[str, object]:
    """Type the question in `folder`, and return what came of it."""
    words = [sys.executable if word == "PYTHON" else word for word in question.typed.split()]
    began_s = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "dynotune", *words],
        cwd=PROGRAMS,
        env={**os.environ, "XDG_STATE_HOME": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        said, _ = process.communicate()
    flat = " ".join(said.split())
    verdict = flat.rpartition("verdict ")[2] if "verdict " in flat else flat[-300:]
    return {
        "typed": f"dynotune {question.typed}",
        "wall_s": round(time.monotonic() - began_s, 1),
        "exit_code": process.returncode,
        "answered": process.returncode == 0 and re.search(question.answer, flat) is not None,
        "verdict": verdict.strip(),
        "load": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=QUESTIONS)
    parser.add_argument("--limit", type=float, default=300.0, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    for name, question in QUESTIONS.items():
        if given.only in (None, name):
            with tempfile.TemporaryDirectory() as folder:
                row = asked(question, Path(folder), given.limit)
            print(name, row, flush=True)
            with result_file.opened(given.out) as result:
                result.setdefault("questions", {})[name] = row


if __name__ == "__main__":
    main()
