"""Keep studies in a database (SQLite or PostgreSQL) that several workers share.

One worker leads a study: it plans the runs, and writes the study and its trials. The other workers take
blocks of runs. The lead and each block are leases: a lease lasts while its worker's heartbeat goes on, by the
clock of the database; after that clock was set, workers wait for a lease's time before they take anything
over. The database accepts the result of a block once, and only from the worker that holds
the block's lease. When a worker is killed, another worker runs its block again, or takes over the lead with
all written trials.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from dynotune.schema import document, redaction
from dynotune.schema.errors import CannotRunHere, RecordError, StorageLost, UsageError
from dynotune.schema.study import BlockResult, HostBlock, Study
from dynotune.text import words

if TYPE_CHECKING:
    import sqlalchemy as sa

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
LEASE_S = 60.0
"""A worker without a heartbeat for this time counts as dead."""
POLL_S = 0.5
PATIENCE_S = 120.0
"""Retry a database that does not answer for at most this time, where the caller cannot go on without the
database."""
EXAMPLE = "For example --storage sqlite:///studies.db or --storage postgresql://host/database."
# Migrations in order, each applied once; never change one after its release. A block's `worker` will run it
# or runs it.
MIGRATIONS = (
    """CREATE TABLE study (name TEXT PRIMARY KEY, asked TEXT NOT NULL, document TEXT NOT NULL,
           finished INTEGER NOT NULL DEFAULT 0, began DOUBLE PRECISION NOT NULL, leader TEXT NOT NULL);
       CREATE TABLE worker (id TEXT PRIMARY KEY, study TEXT NOT NULL, seen DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE block (study TEXT, id TEXT, number INTEGER NOT NULL, document TEXT NOT NULL, worker TEXT NOT NULL,
           result TEXT, PRIMARY KEY (study, id))""",  # noqa: E501
)
_SCHEMA = "CREATE TABLE IF NOT EXISTS dynotune_schema (version INTEGER NOT NULL)"
TABLES = ("block", "dynotune_schema", "study", "worker")
LONGEST_TRANSACTION_S = 60.0
"""A transaction takes milliseconds. Anyone may have written the database, and a view in it may compute
forever."""
_LIMITS = "SET LOCAL idle_in_transaction_session_timeout = 60000; SET LOCAL statement_timeout = 60000"
# Transactions are short and run one after another. Two that lock rows in different orders would wait for each
# other.
_BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": f"{_LIMITS}; SELECT pg_advisory_xact_lock(20261)"}
_BEGIN_READING = {"sqlite": "BEGIN", "postgresql": f"{_LIMITS}; SET TRANSACTION READ ONLY"}
# Tables of these names, and whether they are as dynotune made them: whoever else wrote the database may have
# put views in their place, columns that are computed, or triggers.
_NAMES = ", ".join(f"'{name}'" for name in TABLES)
_KINDS = {
    "sqlite": f"""SELECT tbl_name AS name, type = 'table' AS is_table,
        CASE WHEN type = 'table' THEN substr(sql, 1, 2000) ELSE 'another' END AS made_by
        FROM sqlite_master WHERE tbl_name IN ({_NAMES}) AND sql IS NOT NULL LIMIT 100""",
    "postgresql": f"""SELECT c.relname AS name, c.relkind = 'r' AS is_table,
        CASE WHEN c.relhasrules OR c.relhastriggers OR c.relrowsecurity OR c.relhassubclass
            OR EXISTS (SELECT 1 FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attgenerated <> '')
            OR EXISTS (SELECT 1 FROM pg_catalog.pg_constraint k
                WHERE k.conrelid = c.oid AND k.contype = 'c')
            THEN 'another' END AS made_by
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema() AND c.relname IN ({_NAMES})
            AND c.relkind IN ('r', 'v', 'm', 'f', 'p')""",
}
MOST_STUDIES = 10_000
MOST_TEXT_BYTES = 256 << 20
"""Of the documents of all studies that are listed together."""
# One step may make a text of the largest length, so a look must come after few of them.
_STEPS_BETWEEN_LOOKS = 200
LARGEST_BYTES = 1 << 26
"""Largest text that SQLite may make or return."""
_DRIVER = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}
# Notice a server that vanished silently as soon as a server that refuses connections.
_CONNECT: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": 30, "isolation_level": None},
    "postgresql": {"connect_timeout": 10, "tcp_user_timeout": 10_000},
}
_NOW = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())",
}
# A sign from the future comes from a clock that was wrong, and would keep a dead worker alive.
_ALIVE = "SELECT id FROM worker WHERE study = :study AND seen > {now} - :lease_s AND seen <= {now} + :lease_s"
_UNDONE = "study = :study AND result IS NULL"
_MINE = "(worker = :me OR worker NOT IN ({alive}))"
_TEXT = "CAST(substr({}, 1, 67108864) AS TEXT)"
"""Select a document from the database. Anyone may have written it, so a longer text is cut here and refused
later."""


def open_store(
    url: str, warn: Callable[[str], None], *, lease_s: float = LEASE_S, reads_only: bool = False
) -> Store:
    """Open the database and migrate its tables. `warn` gets one message when the database is lost.

    Args:
        reads_only: write nothing, and refuse a database without studies.

    Raises:
        UsageError: the URL names neither SQLite nor PostgreSQL, the database's driver is not installed, or
            the database is of another program.
        CannotRunHere: the database cannot be reached, or a newer dynotune wrote it.
    """
    try:
        import sqlalchemy as sa

        return Store(_engine(sa.make_url(url), reads_only=reads_only), warn, lease_s, reads_only=reads_only)
    except ImportError as error:
        what = f"--storage needs {error.name}, which is not installed."
        raise UsageError(what, hint="pip install 'dynotune[storage]'") from error
    except (sa.exc.ArgumentError, ValueError):
        # The reason may quote a part of the URL that belongs to the password.
        raise UsageError("--storage is not the URL of a database.", hint=EXAMPLE) from None


def _engine(url: sa.URL, *, reads_only: bool = False) -> sa.Engine:
    """Raises ValueError: the SQLite file does not exist, or an unquoted password would end up in the host's
    name."""
    import sqlalchemy as sa

    redaction.learn(
        {"password": str(url.password or "")} | {name: str(value) for name, value in url.query.items()}
    )
    kind = url.get_backend_name()
    if kind not in _BEGIN:
        raise UsageError(f"--storage knows no {kind}.", hint=EXAMPLE)
    if "@" in (url.host or "") or (kind == "sqlite" and url.database in (None, "", ":memory:")):
        raise ValueError
    if kind == "sqlite" and reads_only:  # a name that does not exist makes no file
        path = Path(str(url.database)).absolute().as_uri()
        url = url.set(database=path.replace("file://", "file:", 1), query={"mode": "ro", "uri": "true"})
    engine = sa.create_engine(
        url.set(drivername=_DRIVER[kind]), pool_pre_ping=True, connect_args=_CONNECT[kind]
    )
    limit = _Limit()
    if kind == "sqlite":
        sa.event.listen(engine, "connect", limit.apply)
    begin = (_BEGIN_READING if reads_only else _BEGIN)[kind]

    def begun(connection: sa.Connection) -> None:
        limit.begin()
        connection.exec_driver_sql(begin)

    sa.event.listen(engine, "begin", begun)
    return engine


def _statements() -> dict[str, str]:
    """Return the statement that makes each table, as SQLite keeps it."""
    made = [" ".join(one.split()) for texts in MIGRATIONS for one in (_SCHEMA, *texts.split(";"))]
    made = [text.replace("IF NOT EXISTS ", "") for text in made]
    return {text.split()[2]: text for text in made if text.startswith("CREATE TABLE ")}


_STATEMENTS = _statements()


def _foreign(reason: str) -> UsageError:
    return UsageError(
        f"The database is not of dynotune's studies: {reason}.",
        hint="Name the database that was given to dynotune tune --storage.",
    )


class _Limit:
    """Limit of the time of a transaction with SQLite, which computes in this process, and would heed no
    Ctrl-C."""

    def __init__(self) -> None:
        self._until_s = math.inf

    def begin(self) -> None:
        self._until_s = time.monotonic() + LONGEST_TRANSACTION_S

    def apply(self, connection: Any, record: object) -> None:
        connection.execute("PRAGMA trusted_schema = OFF")
        # Text that is no UTF-8 is one row's damage: it is refused where the row is decoded.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 2 * LARGEST_BYTES)
        connection.set_progress_handler(lambda: time.monotonic() > self._until_s, _STEPS_BETWEEN_LOOKS)


class Store(contextlib.AbstractContextManager["Store"]):
    """Connect a worker to a database of studies; leaving the `with` block releases the worker's lead and
    blocks.

    `behind`: true while the database lacks something that the study's folder has. `patience_s`: seconds to
    wait for a lost database, where that is less than PATIENCE_S.
    """

    def __init__(
        self,
        engine: sa.Engine,
        warn: Callable[[str], None],
        lease_s: float = LEASE_S,
        *,
        reads_only: bool = False,
    ) -> None:
        self.me, self.behind = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}", False
        self._engine, self._warn, self._lease_s = engine, warn, lease_s
        self._study = self._folder = ""
        self._lost_s = -math.inf
        self._ahead_s: float | None = None
        self.patience_s = math.inf
        self._over = threading.Event()
        self._reads_only = reads_only
        with self._transaction() as do:
            found = do(_KINDS[engine.name]).all()
            tables = {row.name for row in found if row.is_table}
            others = {row.name for row in found} - tables
            if foreign := sorted(others | (set(TABLES) - tables if reads_only else set())):
                raise _foreign(f"it has no table {foreign[0]}")
            if not reads_only:
                do(_SCHEMA)
            version = do("SELECT max(version) FROM dynotune_schema").scalar() or 0
            if not isinstance(version, int):
                raise RecordError("The database's own version is not a number.")
            if version > len(MIGRATIONS):
                what = (
                    f"A newer dynotune wrote this database: version {version}; this one knows "
                    f"{len(MIGRATIONS)}."
                )
                raise CannotRunHere(what, hint="Use that dynotune, or another database.")
            for row in found:
                if row.made_by is not None and " ".join(row.made_by.split()) != _STATEMENTS.get(row.name):
                    raise _foreign(f"another program made or changed its table {row.name}")
            for number, statements in enumerate(() if reads_only else MIGRATIONS[version:], version + 1):
                for statement in (*statements.split(";"), "INSERT INTO dynotune_schema VALUES (:number)"):
                    do(statement, number=number)

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if not self._reads_only:
            with suppress(StorageLost), self._transaction() as do:
                do("DELETE FROM worker WHERE id = :me")
        self._engine.dispose()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Callable[..., sa.CursorResult[Any]]]:
        """Yield a function that executes statements in one transaction. Raises StorageLost."""
        import sqlalchemy as sa

        def do(statement: str, **values: object) -> sa.CursorResult[Any]:
            now = _NOW[self._engine.name]
            if ":lease_s" in (statement := statement.replace("{alive}", _ALIVE)):
                self._look_at_clock(connection.execute(sa.text(f"SELECT {now}")).scalar())
            text = sa.text(statement.replace("{now}", now))
            # Right after an outage or a step of the clock no worker could send a heartbeat, and workers with
            # a block have results to write.
            is_sure = time.monotonic() - self._lost_s > self._lease_s
            known = {
                "me": self.me,
                "study": self._study,
                "lease_s": self._lease_s if is_sure else 1e12,
                **values,
            }
            return connection.execute(text, {name: known[name] for name in text.compile().params})

        began_s = time.monotonic()
        try:
            with self._engine.begin() as connection:
                yield do
        except sa.exc.SQLAlchemyError as error:
            if "interrupted" in str(error) and time.monotonic() - began_s < LONGEST_TRANSACTION_S:
                raise KeyboardInterrupt from error  # Python drops what its handler raises inside SQLite's callback  # noqa: E501
            self._lost_s = time.monotonic()
            # The database's own message holds the statement with all values.
            reason = str(getattr(error, "orig", None) or type(error).__name__).strip().partition("\n")[0]
            what = (
                f"The database {self._engine.url.render_as_string(hide_password=True)} does not answer: "
                f"{reason}."
            )
            raise StorageLost(
                redaction.redacted(what), hint="See that it runs and may be written to."
            ) from error

    def _look_at_clock(self, now_s: Any) -> None:
        """Note if the clock of the database was set, so that signs of life seem older than they are."""
        ahead_s = float(now_s) - time.monotonic()
        if self._ahead_s is not None and abs(ahead_s - self._ahead_s) > max(self._lease_s / 4, POLL_S):
            self._lost_s = time.monotonic()
        self._ahead_s = ahead_s

    def patiently(self, job: Callable[[], T]) -> T:
        """Retry the job while the database is lost. Raises StorageLost after PATIENCE_S, or `patience_s`."""
        until_s = time.monotonic() + min(PATIENCE_S, self.patience_s)
        while True:
            try:
                return job()
            except StorageLost as error:
                self._lost(error)
                if time.monotonic() > until_s:
                    raise
                self.wait()

    def wait(self) -> None:
        self._over.wait(POLL_S)

    def _lost(self, error: StorageLost) -> None:
        if not self.behind:
            self._warn(f"{error.message} What is measured is kept in the folder meanwhile.")
        self.behind = True

    # Studies as a whole

    def studies(self) -> list[tuple[Study, int]]:
        """Return all studies, the oldest first, with their numbers of workers; warn of damaged studies."""
        alive = f"(SELECT count(*) FROM ({_ALIVE.replace(':study', 'study.name')}) AS a) AS workers"
        what = f"substr(name, 1, 200) AS name, length(document) AS num_characters, {alive}"
        found = []
        with self._transaction() as do:
            rows = do(f"SELECT {what} FROM study ORDER BY began LIMIT {MOST_STUDIES + 1}").all()
            if len(rows) > MOST_STUDIES:
                self._warn(f"The database has more than {MOST_STUDIES:,} studies; the others are left out.")
            left = MOST_TEXT_BYTES
            for row in rows[:MOST_STUDIES]:
                name = words.plain(str(row.name))[:100]
                # Documents come one by one: all of them at once may be more than the memory.
                left -= row.num_characters or 0
                if left < 0:
                    self._warn(f"Study {name} and the following ones are left out: they are too large.")
                    break
                text = do(f"SELECT {_TEXT.format('document')} FROM study WHERE name = :name", name=row.name)
                try:
                    found.append((_decoded(text.scalar() or "", Study), row.workers))
                except RecordError as error:
                    self._warn(f"Study {name}: {error.message}")
        return found

    def study(self, name: str) -> Study:
        """Return the study from the database. Raises UsageError: no study has this name; StorageLost,
        RecordError."""
        with self._transaction() as do:
            text = do(
                f"SELECT {_TEXT.format('document')} FROM study WHERE name = :study", study=name
            ).scalar()
        if text is None:
            raise UsageError(
                f"There is no study {name} in this database.", hint="dynotune studies lists them."
            )
        found = _decoded(text, Study)
        if any(one.run and not one.was_elsewhere for one in found.trials):
            raise RecordError(f"The database's record of {name} has runs without the host that made them.")
        return found

    def enter(self, study: Study, asked: str, folder: str) -> None:
        """Take part in the study of this name; create the study if no study has this name.

        `asked`: text that identifies the study's command, options and code. `folder`: folder of this worker's
            runs.

        Raises UsageError if the existing study has another `asked`, and StorageLost.
        """
        self._study, self._folder = study.name, f"{socket.gethostname()}:{folder}"
        with self._transaction() as do:
            do("INSERT INTO worker VALUES (:me, :study, {now})")
            new = (
                "INSERT INTO study (name, asked, document, began, leader) VALUES (:study, :asked, :text, "
                "{now}, :me)"
            )
            do(f"{new} ON CONFLICT (name) DO NOTHING", asked=asked, text=_encoded(study))
            if do("SELECT asked FROM study WHERE name = :study").scalar() != asked:
                what = (
                    f"The study {study.name} exists already, with another command, other options or "
                    "other code."
                )
                raise UsageError(
                    what, hint="Name another by --study; the same command and options take part in it."
                )
        threading.Thread(target=self._beat, daemon=True).start()

    def _beat(self) -> None:
        # Heartbeats of a short lease must not be a load: SQLite lets writers in one by one, in no order.
        while not self._over.wait(max(self._lease_s / 4, POLL_S)):
            with suppress(StorageLost), self._transaction() as do:
                do("UPDATE worker SET seen = {now} WHERE id = :me")

    def lead(self) -> bool:
        """Lead the study if no living worker leads it; delete blocks offered by the last leader and not
        taken."""
        with self._transaction() as do:
            free = "finished = 0 AND (leader = :me OR leader NOT IN ({alive}))"
            if not do(f"UPDATE study SET leader = :me WHERE name = :study AND {free}").rowcount:
                return False
            do(f"DELETE FROM block WHERE {_UNDONE} AND {_MINE}")
        return True

    def save(self, study: Study, *, patiently: bool = False) -> None:
        """Write the study. If the database is lost, warn once and try again at the next call.

        Raises CannotRunHere: another worker has taken over the lead.
        """
        here = {id(one) for one in study.trials if one.run and not one.was_elsewhere}
        trials = [
            replace(one, run=f"{self._folder}/{one.run}") if id(one) in here else one for one in study.trials
        ]
        text = _encoded(replace(study, trials=trials))

        def write() -> int:
            with self._transaction() as do:
                mine = (
                    "UPDATE study SET document = :text, finished = :finished WHERE name = :study AND "
                    "leader = :me"
                )
                return do(mine, text=text, finished=int(study.finished)).rowcount

        try:
            is_led = self.patiently(write) if patiently else write()
        except StorageLost as error:
            self._lost(error)
            return
        if not is_led:
            what = (
                f"Another worker leads the study {study.name} now: this one gave no sign for "
                f"{self._lease_s:.0f} s."
            )
            raise CannotRunHere(what, hint="The same command takes part in it again.")
        self.behind = False

    # Blocks

    def names(self) -> list[str]:
        """Return the names of the other workers on the study; none while the database is lost."""
        with suppress(StorageLost), self._transaction() as do:
            return list(do("{alive} AND id <> :me ORDER BY id LIMIT 1000").scalars())
        return []

    def run(self, host: str, block: HostBlock, go_on: Callable[[], None]) -> BlockResult | None:
        """Offer the block to the worker `host`, and wait until that worker, or its replacement, has run the
        block.

        Returns:
            None if no worker is left, the database is lost, or the database lacks what a worker needs to
            know. The result of a worker that runs the block in spite of that is not used.
        """
        if self.behind:
            return None
        text = _encoded(block)
        of = {
            "id": hashlib.sha256(text.encode()).hexdigest(),
            "number": block.number,
            "text": text,
            "worker": host,
        }
        new = (
            "INSERT INTO block (study, id, number, document, worker) VALUES (:study, :id, :number, "
            ":text, :worker)"
        )
        result = f"SELECT {_TEXT.format('result')} FROM block WHERE study = :study AND id = :id"
        try:
            with self._transaction() as do:
                do(f"{new} ON CONFLICT (study, id) DO NOTHING", **of)
            while True:
                go_on()
                with self._transaction() as do:
                    if (found := do(result, **of).scalar()) is not None:
                        return _decoded(found, BlockResult)
                    if not do("{alive} AND id <> :me LIMIT 1").all():
                        do("DELETE FROM block WHERE study = :study AND id = :id", **of)
                        return None
                self.wait()
        except StorageLost as error:
            self._lost(error)
            return None

    def take(self) -> tuple[str, HostBlock] | None:
        """Return the id and text of the next block that is offered to this worker or to a dead worker."""
        free = f"SELECT id, {_TEXT.format('document')} AS text FROM block WHERE {_UNDONE} AND {_MINE}"
        with self._transaction() as do:
            if (row := do(f"{free} ORDER BY number, id LIMIT 1").first()) is None:
                return None
            do("UPDATE block SET worker = :me WHERE study = :study AND id = :id", id=row.id)
        return row.id, _decoded(row.text, HostBlock)

    def give(self, id_: str, result: BlockResult) -> bool:
        """Write the result of a block; return False if another worker has the block by now."""
        with self._transaction() as do:
            mine = f"UPDATE block SET result = :text WHERE {_UNDONE} AND id = :id AND worker = :me"
            return bool(do(mine, id=id_, text=_encoded(result)).rowcount)


def _encoded(value: msgspec.Struct) -> str:
    return document.encode(value, indent=0).decode()


def _decoded(text: str, type_: type[S]) -> S:
    """Raises RecordError: something else, or another version of dynotune, wrote the text."""
    return document.decode(text.encode("utf-8", "surrogateescape"), type_, name="What the database holds")
