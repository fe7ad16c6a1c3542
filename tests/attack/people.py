"""The standing attack on what people share: two users of a machine, permissions, planted links, and
secrets."""

from __future__ import annotations

import json
import os
import random as randoms
import shutil
import stat
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

import dynotune
from dynotune.launch.process import origin
from dynotune.schema import document
from dynotune.schema.comparison import Comparison

from .counts import Counts

PYTHON = sys.executable
SOURCE = str(Path(dynotune.__file__).parent.parent)
LONGEST_S = 180.0
ME, OTHER = 61001, 61002
STEPS = """
import os, sys, time
import dynotune
print(os.environ.get("HF_TOKEN"), sys.argv[1:], flush=True)
for number in range(60):
    time.sleep(0.003)
    dynotune.step()
if "fails" in sys.argv:
    raise ValueError(f"refused: {sys.argv[1:]} {sorted(os.environ.values())}")
"""
RUN = ("run",)
COMPARE = (
    "compare",
    "env.A=1",
    "--pairs",
    "2",
    "--warmup",
    "3",
    "--steps",
    "20",
    "--step-function",
    "dynotune.step",
)
DIAGNOSE = ("diagnose", "--warmup", "3", "--steps", "20", "--step-function", "dynotune.step")
TUNE = ("tune", "--budget", "4s", "--step-function", "dynotune.step", "--report", "shown.html")


WHOLE = 200
"""Each case twenty times."""


class Skipped(Exception):
    """The case says nothing here."""


class Person:
    """Somebody with a home and a project in it."""

    def __init__(self, folder: Path, *, user: int | None = None) -> None:
        self.home, self.project = folder, folder / "project"
        self.runs, self.state = folder / "state" / "dynotune" / "runs", folder / "state"
        self.project.mkdir(parents=True)
        (self.project / "train.py").write_text(STEPS)
        self.before = [] if user is None else _become(user)
        if user is not None:
            for path in (folder, self.project, self.project / "train.py"):
                os.chown(path, user, user)
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_STATE_HOME": str(self.state),
            "PYTHONPATH": SOURCE,
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, *words: str, umask: int = 0o022, command: Sequence[str] = ()) -> subprocess.Popen[str]:
        # Whoever has a capability to read this interpreter may start it, but may not be asked whether.
        asks = any("+dac_read_search" in word for word in self.before)
        command = command or (("sh", "-c", f"exec {PYTHON} train.py") if asks else (PYTHON, "train.py"))
        shell = ["sh", "-c", f'umask {umask:o}; exec "$@"', "sh"]
        ours = [*shell, *self.before, PYTHON, "-m", "dynotune", *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        whole = [*ours, "--", *command] if command != (None,) else ours
        return subprocess.Popen(whole, cwd=self.project, env=self.env, text=True, errors="replace", **streams)

    def types(self, *words: str, umask: int = 0o022, command: Sequence[str] = ()) -> tuple[int, str]:
        return ended(self.start(*words, umask=umask, command=command))

    def says(self, *words: str) -> tuple[int, str]:
        """A dynotune command that takes no command of the user's."""
        return self.types(*words, command=(None,))  # type: ignore[arg-type]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        said, _ = process.communicate(timeout=LONGEST_S)
    assert process.returncode != 70 and "dynotune made a mistake" not in said, said[-800:]
    return process.returncode, said


def _become(user: int) -> list[str]:
    """The words that make a command another user's, who may read this interpreter at least."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        raise Skipped("needs root and setpriv to be several users")
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    may_read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    for become in (words, [*words, *may_read]):
        # It starts with the rights of before, and then takes another installation's modules if it may not
        # read its own.
        reads = f"import msgspec, os; open({dynotune.__file__!r}); print(os.__file__)"
        done = subprocess.run(
            [*become, PYTHON, "-c", reads], cwd="/", capture_output=True, text=True, check=False
        )
        if done.stdout.strip() == os.__file__:
            return become
    raise Skipped("another user may not read this interpreter")


def attack(number: int, seed: int, *, first: int = 0) -> Counts:
    """Run `number` cases.

    Args:
        seed, first: the case of number `i` depends on the seed and `i` alone: `first=i` begins with that one.
    """
    counts = Counts()
    for at in range(first, first + number):
        case = CASES[at % len(CASES)]
        name = case.__name__.strip("_").replace("_", " ")
        counts.tried[name] += 1
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            Path(folder).chmod(0o755)
            try:
                case(randoms.Random(f"{seed} {at}"), Path(folder).resolve())
            except Skipped as skipped:
                counts.skipped[name] = str(skipped)
                counts.tried[name] -= 1
            except (AssertionError, OSError, ValueError, subprocess.TimeoutExpired) as error:
                counts.failures.append(f"{name}, --seed {seed} --first {at}: {type(error).__name__}: {error}")
            else:
                counts.held[name] += 1
    counts.tried = +counts.tried  # without those that were all skipped
    return counts


# Users and permissions


def open_to_others(folder: Path) -> Iterator[str]:
    """What others may read or change in `folder`, if they may come into it."""
    for path in [folder, *folder.iterdir()] if folder.is_dir() else []:
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & 0o077 and path != folder:
            yield f"{path} {stat.filemode(mode)}"
        if path != folder and stat.S_ISDIR(mode) and mode & 0o011:
            yield from open_to_others(path)
    if folder.is_dir() and folder.stat().st_mode & 0o022:
        yield f"{folder} {stat.filemode(folder.stat().st_mode)}"


def _two_users_measure_at_once(random: randoms.Random, folder: Path) -> None:
    """They share the folder for temporary files, which is all that they share."""
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    both = [Person(folder / str(user), user=user) for user in (ME, OTHER)]
    # In a user namespace a capability to read this interpreter is gone.
    bare = ["--no-sandbox"] if any("+dac_read_search" in word for word in both[0].before) else []
    for person in both:
        person.env["TMPDIR"] = str(folder / "tmp")
    words = [random.choice((RUN, (*COMPARE, *bare))) for _ in both]
    started = [
        person.start(*each, umask=random.choice((0o022, 0))) for person, each in zip(both, words, strict=True)
    ]
    for person, process, user in zip(both, started, (ME, OTHER), strict=True):
        code, said = ended(process)
        assert code == 0, said[-800:]
        owners = {path.stat().st_uid for path in person.home.rglob("*")}
        assert owners == {user}, owners
        assert not list(open_to_others(person.state / "dynotune"))
    assert not list((folder / "tmp").iterdir())


def _umask(random: randoms.Random, folder: Path) -> None:
    """What dynotune keeps is its user's own, whatever the umask; and the umask is the command's as ever."""
    me = Person(folder / "me")
    umask = random.choice((0, 0, 0o002, 0o077, 0o277))
    shows = (
        PYTHON,
        "-c",
        "import os; open('made', 'w'); print('mode', oct(os.stat('made').st_mode & 0o777))",
    )
    code, said = me.types(*RUN, umask=umask, command=shows)
    assert (code, f"mode {oct(0o666 & ~umask)}" in said) == (0, True), said[-800:]
    words = random.choice((COMPARE, DIAGNOSE))
    code, said = me.types(*words, umask=umask & 0o177)
    assert code == 0, said[-800:]
    left = list(open_to_others(me.state))
    assert not left, (oct(umask), left)


def _links_planted(random: randoms.Random, folder: Path) -> None:
    """Links at every path that can be guessed lead to a file of the user's, which stays what it is."""
    me, precious = Person(folder / "me"), folder / "precious"
    precious.write_text("as it was")
    precious.chmod(0o640)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    state = me.state / "dynotune"
    state.mkdir(mode=0o700, parents=True)
    names = [
        me.project / f"{name}.partial" for name in ("answer.json", "recipe.toml", "shown.html", "report.html")
    ]
    names.append(state / f"{boot}.lock")
    names += [state / f"origin.key.{pid}" for pid in range(os.getpid(), os.getpid() + 400)]
    for path in names:
        path.symlink_to(precious)
    words = random.choice((COMPARE, TUNE, DIAGNOSE))
    code, said = me.types(*words, "--json", "answer.json")
    assert code in (0, 3), said[-800:]
    assert precious.read_text() == "as it was" and stat.S_IMODE(precious.stat().st_mode) == 0o640


def _planted(me: Person, base: Path, owned: Path) -> Path:
    """A comparison that somebody else has begun in `base`, of a command that must not run."""
    code, said = me.types(*COMPARE, "--run-dir", str(base), command=("false",))
    assert code == 4, said[-800:]
    (file,) = base.glob("*/comparison.json")
    found = document.read(file, Comparison)
    run = msgspec.structs.replace(found.run, command=["touch", str(owned)])
    undecided = msgspec.structs.replace(found, run=run, verdict=None, failed=None)
    file.write_bytes(document.encode(undecided))
    return file.parent


def _run_folder_that_others_write(random: randoms.Random, folder: Path) -> None:
    """Runs go to a folder that everyone may write; what somebody planted there runs nothing."""
    me, base, owned = Person(folder / "me"), folder / "shared", folder / "owned"
    base.mkdir()
    base.chmod(random.choice((0o777, 0o1777)))
    planted = _planted(me, base, owned)
    code, said = me.says("compare", "--resume", planted.name, "--run-dir", str(base))
    assert code == 2 and "was not begun by you on this machine" in said, said[-800:]
    assert me.says("report", str(planted))[0] in (0, 4)
    code, said = me.types(*random.choice((COMPARE, RUN)), "--run-dir", str(base), umask=0)
    assert code == 0, said[-800:]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in base.iterdir())
    assert not owned.exists()


def _forged_mark(random: randoms.Random, folder: Path) -> None:
    """Somebody else could write where the user's key is kept, and has marked a folder with a key of his
    own."""
    me, base, owned = Person(folder / "me"), folder / "shared", folder / "owned"
    base.mkdir()
    planted = _planted(me, base, owned)
    shutil.rmtree(me.state)
    (me.state / "dynotune").mkdir(parents=True)
    key = me.state / "dynotune" / "origin.key"
    key.write_bytes(bytes(32))
    found = document.read(planted / "comparison.json", Comparison)
    forged = origin._Origin(found.run.command, str(found.run.cwd), [])
    mark = origin._mark_of(forged, bytes(32))
    (planted / origin.FILE).write_text(json.dumps(msgspec.to_builtins(forged) | {"mark": mark}))
    if os.geteuid() != 0:
        raise Skipped("needs root to give files away")
    what = random.choice(("his folder", "his file"))
    os.chown(key if what == "his file" else me.state / "dynotune", OTHER, OTHER)
    (me.state / "dynotune").chmod(random.choice((0o700, 0o755, 0o777)))
    code, said = me.says("compare", "--resume", planted.name, "--run-dir", str(base))
    assert code == 2 and "was not begun by you on this machine" in said, (what, said[-800:])
    assert not owned.exists(), what


def _another_user_resumes(random: randoms.Random, folder: Path) -> None:
    """The folder is closed to others; where its owner opens it, its command is not run by anybody else."""
    base, owned = folder / "shared", folder / "owned"
    base.mkdir()
    base.chmod(0o1777)
    first, other = (Person(folder / str(user), user=user) for user in (ME, OTHER))
    planted = _planted(first, base, owned)
    opens = random.random() < 0.5
    for path in (planted, *planted.rglob("*")) if opens else ():
        path.chmod(0o777)
    code, said = other.says("compare", "--resume", planted.name, "--run-dir", str(base))
    assert code in (2, 3) and "next: " in said, said[-800:]
    assert "was not begun by you on this machine" in said or not opens, said[-800:]
    assert not owned.exists()


# Secrets

NAMES = (
    "HF_TOKEN",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "MY_PASSWORD",
    "GITHUB_TOKEN",
    "DB_CREDENTIALS",
)
WORDS: tuple[Callable[[str], list[str]], ...] = (
    lambda secret: ["--token", secret],
    lambda secret: [f"--api-key={secret}"],
    lambda secret: [f"--data=https://me:{secret}@example.org/x"],
    lambda secret: [f"https://example.org/x?token={secret}&n=1"],
    lambda secret: ["--header", f"Authorization: Bearer {secret}"],
    lambda secret: [f'{{"password": "{secret}"}}'],
    lambda secret: [f"hf_{secret}"],
)


def leaks(person: Person, secrets: Sequence[str]) -> list[str]:
    """Files below the person's home that hold a secret; what the command itself printed is its own."""
    files = [
        path for path in person.home.rglob("*") if path.is_file() and path.name not in ("stdout", "stderr")
    ]
    return [str(path) for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


def _secrets(random: randoms.Random, folder: Path) -> None:
    """In variables, arguments, addresses and tracebacks; in no record, answer, page, recipe or export."""
    me = Person(folder / "me")
    letters = string.ascii_letters + string.digits
    secrets = ["S3" + "".join(random.choices(letters, k=random.randint(16, 40))) for _ in range(5)]
    name, inherited = random.sample(NAMES, 2)
    me.env[inherited] = secrets[0]
    words = [word for secret in secrets[1:4] for word in random.choice(WORDS)(secret)]
    fails = random.random() < 0.5
    command = [PYTHON, "train.py", *words, *(["fails"] if fails else [])]
    subject = random.choice((COMPARE, DIAGNOSE, TUNE, RUN))
    typed = f"env.{name}={secrets[4]}"
    options = {COMPARE: [typed], TUNE: ["--try", typed], DIAGNOSE: ["--set", typed], RUN: ["--set", typed]}[
        subject
    ]
    answers = [] if subject is TUNE and fails else ["--json", "answer.json"]
    code, said = me.types(*subject, *options, *answers, "--run-dir", str(me.home / "runs"), command=command)
    assert code in (0, 1, 3, 4), said[-800:]
    if subject is not RUN:  # which shows what the command prints, as it is
        assert not any(secret in said for secret in secrets), (subject[0], words)
    assert not (found := leaks(me, secrets)), (subject[0], words, found)
    recipe = '[recipe]\nschema = "dynotune.recipe/2"\n'
    (me.project / "mine.toml").write_text(
        f'{recipe}command = ["true"]\n[settings]\n"env.OMP_DYNAMIC" = true\n'
    )
    format_ = random.choice(("shell", "docker", "kubernetes"))
    export = ("recipe", "export", "mine.toml", "--format", format_, "--set", typed, "--output", "exported")
    code, said = me.says(*export)
    assert code == 0 and not any(secret in said for secret in secrets), said[-800:]
    assert not leaks(me, secrets), format_


CASES = (
    _two_users_measure_at_once,
    _umask,
    _links_planted,
    _run_folder_that_others_write,
    _forged_mark,
    _another_user_resumes,
    _secrets,
    _secrets,
    _umask,
    _secrets,
)
