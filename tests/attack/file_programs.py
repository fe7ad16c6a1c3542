"""Programs that do to files what programs do, and print what they saw; standard library only.

Each does its work in a folder that `file_place.fill` made. `do` prints what an action gave, or the name of
its error. What `VIEW_DIFFERS` names is otherwise in a view, and documented to be: by program, action, and the
places.
"""

from __future__ import annotations

PRELUDE = r"""
import errno, fcntl, hashlib, json, mmap, os, shutil, signal, socket, sqlite3, stat, subprocess, sys, tempfile
from pathlib import Path as P
def say(key, value):
    print(json.dumps([key, value]), flush=True)
def do(key, action):
    try:
        value = action()
        json.dumps(value)
    except TypeError:
        value = "done"
    except OSError as error:
        value = errno.errorcode.get(error.errno, str(error.errno))
    except sqlite3.Error as error:
        value = str(error)
    say(key, value)
def whose(number, own):
    return "own" if number == own else "other"
def look(top=b"."):
    for folder, folders, files in os.walk(top):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)
            s = os.lstat(path)
            # What was not touched has its old times. A view keeps none of a pipe.
            when = "new" if s.st_mtime > 1_700_000_000 or stat.S_ISFIFO(s.st_mode) else s.st_mtime_ns
            seen = [oct(s.st_mode), whose(s.st_uid, os.getuid()), when]
            if stat.S_ISREG(s.st_mode):
                seen += [s.st_size, s.st_nlink]
                try:
                    with open(path, "rb") as file:
                        seen.append(hashlib.file_digest(file, "md5").hexdigest()[:8])
                    seen.append(sorted(x for x in os.listxattr(path) if x.startswith("user.")))
                except OSError as error:
                    seen.append(errno.errorcode[error.errno])
            elif stat.S_ISLNK(s.st_mode):
                seen.append(os.readlink(os.fsdecode(path)))
            say("look " + os.fsdecode(path), seen)
"""

PROGRAMS = {
    "rename": """
do("over", lambda: os.replace("a.txt", "b.txt"))
do("away", lambda: os.rename("sub/one.txt", "sub/uno.txt"))
do("into", lambda: os.rename("big.bin", "empty/big.bin"))
do("missing", lambda: os.rename("nothing", "x"))
do("onto folder", lambda: os.rename("sub/uno.txt", "empty"))
""",
    "save a checkpoint": """
def save(n):
    with open("model.tmp", "wb") as file:
        file.write(bytes([n]) * 30_000); file.flush(); os.fsync(file.fileno())
    os.replace("model.tmp", "model.pt")
    return P("model.pt").read_bytes()[0]
for n in range(4):
    do(f"save {n}", lambda: save(n))
do("folder", lambda: os.fsync(os.open(".", os.O_RDONLY)))
""",
    "rename a folder": """
do("existing", lambda: os.rename("sub", "moved"))
do("made", lambda: os.mkdir("new"))
do("own", lambda: os.rename("new", "newer"))
do("over empty", lambda: os.rename("newer", "empty"))
do("over full", lambda: os.rename("empty", "sub"))
do("into itself", lambda: os.rename("empty", "empty/x"))
""",
    "move a folder": """
do("move", lambda: shutil.move("sub", "moved"))
do("read", lambda: P("moved/deep/two.txt").read_text())
do("mv", lambda: subprocess.run(["mv", "moved", "empty/again"], stderr=-3).returncode)
""",
    "hard links": """
do("link", lambda: os.link("a.txt", "a2.txt"))
do("write", lambda: P("a2.txt").open("a").write("more"))
do("read", lambda: P("a.txt").read_text())
do("count", lambda: os.stat("a.txt").st_nlink)
do("same", lambda: os.path.samefile("a.txt", "a2.txt"))
do("drop", lambda: os.unlink("a.txt"))
do("left", lambda: P("a2.txt").read_text())
""",
    "hard links that were there": """
do("same", lambda: os.path.samefile("hard1", "hard2"))
do("count", lambda: os.stat("hard1").st_nlink)
do("write", lambda: P("hard1").open("a").write("more"))
do("read", lambda: P("hard2").read_text())
do("still", lambda: os.path.samefile("hard1", "hard2"))
""",
    "symlinks": """
do("read", lambda: P("link").read_text())
do("write", lambda: P("link").write_text("through the link"))
do("target", lambda: P("a.txt").read_text())
do("dangling", lambda: P("dangling").write_text("made by a link"))
do("made", lambda: P("nowhere").read_text())
do("folder", lambda: P("dirlink/new").write_text("x"))
do("replace", lambda: (os.symlink("b.txt", "l2"), os.replace("l2", "link")) and os.readlink("link"))
do("loop", lambda: (os.symlink("loop", "loop"), open("loop")))
do("lchown", lambda: os.chown("link", os.getuid(), -1, follow_symlinks=False))
""",
    "modes": """
do("less", lambda: os.chmod("a.txt", 0o400))
do("write", lambda: P("a.txt").open("a").write("x") and os.getuid() == 0)
do("more", lambda: os.chmod("ro.txt", 0o666))
do("now", lambda: P("ro.txt").write_text("x"))
do("run", lambda: os.chmod("run.sh", 0o644))
do("shut", lambda: os.chmod("sub", 0o500))
do("in it", lambda: P("sub/three").write_text("x") and os.getuid() == 0)
do("bits", lambda: os.chmod("empty", 0o3777))
do("inherits", lambda: (os.mkdir("empty/in"), oct(os.stat("empty/in").st_mode))[1])
do("umask", lambda: (os.umask(0o077), P("private").write_text("x"), oct(os.stat("private").st_mode))[2])
""",
    "owners": """
do("self", lambda: os.chown("a.txt", os.getuid(), os.getgid()))
do("none", lambda: os.chown("b.txt", -1, -1))
do("new", lambda: (P("n").write_text(""), whose(os.stat("n").st_uid, os.getuid()))[1])
do("access", lambda: [os.access(x, os.R_OK | os.W_OK) for x in ("a.txt", "ro.txt", "secret", "sub", ".")])
""",
    "times": """
do("old", lambda: os.utime("a.txt", ns=(10**18, 10**18 + 1)))
do("kept", lambda: os.stat("a.txt").st_mtime_ns)
do("folder", lambda: os.utime("sub", (5e8, 5e8)))
do("link", lambda: os.utime("link", (4e8, 4e8), follow_symlinks=False))
do("before 1970", lambda: os.utime("b.txt", (-1000, -1000)))
do("copy", lambda: shutil.copystat("a.txt", "sub/one.txt"))
do("write moves it", lambda: (P("a.txt").write_text("x"), os.stat("a.txt").st_mtime > 1.6e9)[1])
do("reading does not", lambda: (P("big.bin").read_bytes(), os.stat("big.bin").st_mtime_ns)[1])
""",
    "truncate": """
do("shorter", lambda: os.truncate("big.bin", 1000))
do("longer", lambda: os.truncate("a.txt", 5000))
do("zeroes", lambda: P("a.txt").read_bytes().count(0))
do("open", lambda: open("b.txt", "w").close())
do("nothing", lambda: os.stat("b.txt").st_size)
do("link", lambda: os.truncate("link", 3))
""",
    "mmap": """
def shared():
    with open("big.bin", "r+b") as file, mmap.mmap(file.fileno(), 0) as m:
        m[100:105] = b"hello"; m.flush()
        return os.pread(file.fileno(), 5, 100).decode()
def private():
    with open("big.bin", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as m:
        m[0:2] = b"zz"
        return [m[:2].decode(), P("big.bin").read_bytes()[:2].hex()]
def children():
    with open("b.txt", "w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096) as m:
            pid = os.fork()
            if not pid:
                m[0] = 7; os._exit(0)
            os.waitpid(pid, 0)
            return m[0]
do("shared", shared); do("private", private); do("children", children)
""",
    "O_DIRECT": """
def direct(name, flags):
    fd = os.open(name, flags | os.O_DIRECT, 0o644)
    try:
        page = mmap.mmap(-1, 4096)
        page[:3] = b"abc"
        if flags & os.O_RDWR:
            os.write(fd, page); os.lseek(fd, 0, 0)
        os.readv(fd, [page])
        return page[:3].hex()
    finally:
        os.close(fd)
do("read", lambda: direct("big.bin", os.O_RDONLY))
do("write", lambda: direct("new.bin", os.O_RDWR | os.O_CREAT))
do("over", lambda: direct("big.bin", os.O_RDWR))
""",
    "sparse": """
def holes(name):
    with open(name, "rb") as file:
        return [os.lseek(file.fileno(), 0, os.SEEK_DATA), P(name).stat().st_size]
def make():
    with open("new.sparse", "wb") as file:
        file.seek(10**9); file.write(b"end")
do("was", lambda: P("sparse").stat().st_size)
do("make", make)
do("holes", lambda: holes("new.sparse")[1])
do("few blocks", lambda: P("new.sparse").stat().st_blocks < 1000)
do("write to one", lambda: (P("sparse").open("r+b").write(b"x"), P("sparse").stat().st_size)[1])
do("again", lambda: os.truncate("new.sparse", 10))
do("allocate", lambda: os.posix_fallocate(os.open("pre", os.O_RDWR | os.O_CREAT), 0, 20_000))
""",
    "sqlite": """
def use(path, mode):
    c = sqlite3.connect(path, timeout=1)
    m = c.execute(f"pragma journal_mode={mode}").fetchone()
    c.execute("create table if not exists t(x)")
    with c:
        c.executemany("insert into t values (?)", [(n,) for n in range(50)])
    d = sqlite3.connect(path, timeout=1)
    rows = d.execute("select count(*), sum(x) from t").fetchone()
    d.close(); c.close()
    return [m, rows]
for mode in ("delete", "wal", "truncate", "memory"):
    do("new " + mode, lambda: use(mode + ".db", mode))
    do("existing " + mode, lambda: use("data.db", mode))
""",
    "sqlite in two processes": """
def two():
    c = sqlite3.connect("data.db", timeout=5); c.execute("pragma journal_mode=wal")
    kid = "import sqlite3\\nc = sqlite3.connect('data.db', timeout=30)\\nfor n in range(20):\\n    with c: "
    words = [sys.executable, "-S", "-c", kid + "c.execute('insert into t values (1)')"]
    kids = [subprocess.Popen(words, stderr=-3) for n in range(2)]
    codes = [kid.wait() for kid in kids]
    return [codes, c.execute("select count(*) from t").fetchone(), c.execute("pragma integrity_check").fetchone()]
do("two", two)
""",  # noqa: E501
    "flock": """
def held(name, how):
    with open(name, "r+") as first, open(name) as second:
        fcntl.flock(first, fcntl.LOCK_EX)
        try:
            fcntl.flock(second, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held"
        return "free"
do("exclusive", lambda: held("a.txt", fcntl.LOCK_EX))
do("shared", lambda: held("a.txt", fcntl.LOCK_SH))
def another():
    return subprocess.run(["flock", "-n", "b.txt", "echo", "-n", "got"], stdout=-1, stderr=-3).stdout.decode()
def across():
    with open("b.txt") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        return another()
do("another", another)
do("across", across)
def folder():
    fd = os.open("sub", os.O_RDONLY); fcntl.flock(fd, fcntl.LOCK_EX)
    return subprocess.run(["flock", "-n", "sub", "true"], stderr=-3).returncode
do("folder", folder)
""",
    "fcntl locks": """
def child(start, length):
    pid = os.fork()
    if not pid:
        with open("a.txt", "r+") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
            except OSError:
                os._exit(1)
            os._exit(0)
    return os.waitpid(pid, 0)[1] >> 8
def ranges():
    with open("a.txt", "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 4, 0)
        return [child(0, 4), child(4, 2), child(2, 4)]
do("ranges", ranges)
""",
    "absolute paths": """
here = os.getcwd()
do("write", lambda: P(here, "a.txt").write_text("by its whole name"))
do("read", lambda: P("a.txt").read_text())
do("real", lambda: os.path.relpath(os.path.realpath("link"), here))
do("proc", lambda: os.readlink("/proc/self/cwd") == here)
do("by cwd", lambda: P("/proc/self/cwd/new").write_text("x"))
do("by descriptor", lambda: P(f"/proc/self/fd/{os.open('sub', os.O_RDONLY)}/one.txt").write_text("x"))
do("up and down", lambda: P("..", os.path.basename(here), "b.txt").write_text("x"))
do("chdir", lambda: (os.chdir("/"), os.chdir(here), P("c").write_text("x"))[2])
""",
    "delete and make again": """
for n in range(3):
    do(f"tree {n}", lambda: (shutil.rmtree("sub"), os.makedirs("sub/deep"), P("sub/deep/two.txt").write_text(str(n))))
    do(f"file {n}", lambda: (os.unlink("a.txt"), P("a.txt").write_text(str(n))))
do("folder for file", lambda: (os.unlink("b.txt"), os.mkdir("b.txt"), P("b.txt/x").write_text("x")))
do("file for folder", lambda: (os.rmdir("empty"), P("empty").write_text("x")))
do("missing", lambda: os.unlink("nothing"))
do("full", lambda: os.rmdir("sub"))
""",  # noqa: E501
    "many small files": """
def many():
    for n in range(400):
        P(f"shard-{n:03}").write_text(str(n))
    for n in range(0, 400, 2):
        os.unlink(f"shard-{n:03}")
    return len(os.listdir("."))
do("many", many)
do("listed", lambda: sorted(x for x in os.listdir(".") if not x.startswith("shard"))[:5])
do("scanned", lambda: sum(x.is_file() for x in os.scandir(".")))
""",
    "deep folders": """
def deep():
    os.makedirs("/".join(["d" * 20] * 40))
    os.makedirs("sub/deep/" + "/".join("abcdefgh"))
    return sum(1 for _ in os.walk("."))
do("deep", deep)
do("path too long", lambda: open("x/" * 3000))
""",
    "odd names": r"""
for key, name in {"new line": b"a\nb", "not UTF-8": b"\xe9\xff", "255 bytes": b"x" * 255, "256 bytes": b"x" * 256,
        "dash": b"-rf", "space": b" ", "dots": b"...", "quote": b"'\"$(x)`\\", "escape": b"\x1b[31m",
        "colon": b"a:b,c=d",
        "whiteout": b".wh.a.txt", "opaque": b".wh..wh..opq"}.items():
    do(key, lambda: P(os.fsdecode(name)).write_text("x"))
    do(key + " renamed", lambda: os.rename(name, name[:200] + b"2"))
do("there", lambda: sorted(map(os.fsdecode, os.listdir(b"odd"))))
do("rewritten", lambda: [open(b"odd/" + name, "a").write("y") for name in sorted(os.listdir(b"odd"))])
do("gone", lambda: [os.unlink(b"odd/" + name) for name in sorted(os.listdir(b"odd"))[1:]])
""",  # noqa: E501
    "extended attributes": """
do("read", lambda: os.getxattr("a.txt", "user.note").decode())
do("write", lambda: os.setxattr("a.txt", "user.note", b"changed"))
do("more", lambda: os.setxattr("b.txt", "user.other", b"x" * 100))
do("folder", lambda: os.setxattr("sub", "user.d", b"1"))
do("list", lambda: sorted(x for x in os.listxattr("a.txt") if x.startswith("user.")))
do("take away", lambda: os.removexattr("a.txt", "user.note"))
do("missing", lambda: os.getxattr("a.txt", "user.note"))
do("copy", lambda: shutil.copy2("b.txt", "b3.txt"))
""",
    "pipes and sockets": """
def pipe(name):
    if not os.access(name, os.W_OK):
        return "may not be written, and who reads it would wait"
    pid = os.fork()
    if not pid:
        with open(name, "w") as file: file.write("through")
        os._exit(0)
    text = P(name).read_text(); os.waitpid(pid, 0)
    return text
def sock():
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s.sock"); server.listen()
        client.connect("s.sock"); client.send(b"hi")
        return server.accept()[0].recv(9).decode()
do("make", lambda: os.mkfifo("pipe"))
if P("pipe").exists():
    do("new pipe", lambda: pipe("pipe"))
do("existing pipe", lambda: pipe("fifo"))
do("socket", sock)
do("again", sock)
""",
    "descriptors that stay open": """
def stale():
    with open("a.txt") as reader:
        before = reader.read()
        with open("a.txt", "a") as writer: writer.write("later")
        return [before, reader.read()]
def unlinked():
    with open("b.txt", "r+") as file:
        os.unlink("b.txt"); file.seek(0, 2); file.write("x"); file.seek(0)
        return [file.read(), os.path.exists("b.txt"), os.fstat(file.fileno()).st_nlink]
def replaced():
    with open("big.bin", "rb") as file:
        P("t").write_text("new"); os.replace("t", "big.bin")
        return [len(file.read()), P("big.bin").read_text()]
do("reader sees the writer", stale); do("unlinked", unlinked); do("replaced", replaced)
do("tmpfile", lambda: tempfile.TemporaryFile(dir=".").write(b"x"))
do("O_TMPFILE", lambda: os.write(os.open(".", os.O_TMPFILE | os.O_RDWR), b"x"))
do("append", lambda: [os.write(os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), b"line") for _ in range(3)])
""",  # noqa: E501
    "copies": """
do("file", lambda: shutil.copy("big.bin", "big2.bin"))
do("tree", lambda: shutil.copytree("sub", "sub2", symlinks=True))
def ranged():
    with open("big.bin", "rb") as a, open("ranged", "wb") as b:
        return os.copy_file_range(a.fileno(), b.fileno(), 5000)
def sent():
    with open("big.bin", "rb") as a, open("sent", "wb") as b:
        return os.sendfile(b.fileno(), a.fileno(), 0, 5000)
do("copy_file_range", ranged); do("sendfile", sent)
do("cp -a", lambda: subprocess.run(["cp", "-a", "sub", "sub3"], stderr=-3).returncode)
do("tar", lambda: subprocess.run("tar cf t.tar sub && mkdir x && tar xf t.tar -C x", shell=True, stderr=-3).returncode)
""",  # noqa: E501
    "tools": """
def sh(text):
    return do(text, lambda: subprocess.run(text, shell=True, stdout=-1, stderr=-3).stdout.decode())
sh("sed -i s/a/b/ a.txt; cat a.txt")
sh("find . -name '*.txt' | sort")
sh("echo more >> b.txt; wc -c < b.txt")
sh("ln -sfn sub/deep dirlink; readlink dirlink")
sh("install -m 600 a.txt installed; stat -c %a installed")
sh("rm -rf sub empty; ls | head -3")
sh("touch -d @1000000000 b.txt && stat -c %Y b.txt")
sh("./run.sh")
""",
    "killed while writing": """
pid = os.fork()
if not pid:
    with open("half", "wb", buffering=0) as file:
        file.write(b"x" * 5000)
        os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(pid, 0)
do("half", lambda: P("half").stat().st_size)
""",
    "bytecode and modules": """
do("write", lambda: P("helper.py").write_text("value = 41"))
sys.path.insert(0, "")
def imported():
    import helper
    return [helper.value, os.path.exists("__pycache__") == (not sys.dont_write_bytecode)]
do("import", imported)
""",
    "workers": """
def kid(n):
    pid = os.fork()
    if not pid:
        try:
            P(f"part-{n}").write_text(str(n) * 100)
            with open("log", "a") as file: file.write("line\\n")
        finally:
            os._exit(0)
    return pid
def all_():
    pids = [kid(n) for n in range(6)]
    [os.waitpid(pid, 0) for pid in pids]
    return sorted(P("log").read_text().split())
do("all", all_)
""",
    "fills what there is": """
def fill():
    with open("fill", "wb", buffering=0) as file:
        for n in range(64):
            file.write(b"x" * 65536)
    return "all"
do("fill", fill)
do("free again", lambda: os.unlink("fill"))
""",
}

_UNPRIVILEGED = ("user", "user's on another's files")
# The kernel refuses redirect_dir together with userxattr.
VIEW_DIFFERS = {
    ("rename a folder", "existing"): ({"EXDEV"}, _UNPRIVILEGED),
    # Without an index a file that was there and a link to it, made in the view, have numbers of their own.
    ("hard links", "same"): ({False}, (*_UNPRIVILEGED, "overlayfs")),
    # From the file system of the folder to that of the copies; programs that copy so go on by another way.
    ("copies", "copy_file_range"): ({"EXDEV"}, ("overlayfs", "tmpfs", "small disk")),
}
