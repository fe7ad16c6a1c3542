"""Read tables of a SQLite file that another program wrote, as columns of numpy. The file is data: nothing is
written to it or beside it, and nothing that its author could have put there (views, virtual tables, generated
columns) is executed.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dynotune.schema import untrusted
from dynotune.schema.document import in_words
from dynotune.schema.errors import UsageError

Ints = NDArray[np.int64]
NULL = int(np.iinfo(np.int64).min)
"""Number that stands for SQL's NULL in a column of integers; also every value of a missing column."""

_MAGIC = b"SQLite format 3\0"
_ROWS_AT_ONCE = 1 << 16
# No recorded program has a longer string; a longer string is refused instead of kept in memory.
_LONGEST_STRING_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Database:
    """An open SQLite file.

    Args:
        columns: names of the columns of each table.
        advance: function that is called after each block of rows with the table's name and the number of
            rows.
    """

    path: Path
    connection: sqlite3.Connection
    columns: dict[str, frozenset[str]]
    advance: Callable[[str, int], None]

    def __contains__(self, table: str) -> bool:
        return table in self.columns


@contextmanager
def opened(
    path: Path, *, advance: Callable[[str, int], None] = lambda table, num_rows: None
) -> Iterator[Database]:
    """Open the SQLite file at `path`, only for reading.

    Raises UsageError: `path` is not a file, not SQLite, or cut short; or SQLite finds damage inside the
    `with` block.
    """
    _check_header(path)
    address = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as connection:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_STRING_BYTES)
            connection.text_factory = lambda raw: raw.decode(errors="replace")
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA temp_store = MEMORY")
            yield Database(path, connection, _columns(connection), advance)
    except (sqlite3.Error, UnicodeError) as error:  # Python decodes SQLite's own messages strictly.
        raise UsageError(
            f"{path} is a damaged SQLite database: {in_words(error)}.",
            hint="Export it again from the .nsys-rep file.",
        ) from error


def leftovers(path: Path) -> list[str]:
    """Return the names of files beside `path` with unmerged changes, which an unfinished writer left."""
    beside = (path.with_name(path.name + ending) for ending in ("-wal", "-journal"))
    return [other.name for other in beside if other.is_file() and other.stat().st_size]


def count(database: Database, table: str) -> int:
    return int(database.connection.execute(f'SELECT COUNT(*) FROM "{table}"').fetchone()[0])


def integers(
    database: Database, table: str, required: Sequence[str], optional: Sequence[str] = (), *, where: str = "1"
) -> dict[str, Ints]:
    """Return int64 columns of `table` by name; NULL stands for SQL's NULL and for missing optional columns.

    Args:
        where: a condition in SQL, never made from the file's content.

    Raises:
        UsageError: a required column is missing, or a value is not an integer.
    """
    missing = [name for name in required if name not in database.columns[table]]
    if missing:
        raise UsageError(
            f"{database.path}: table {table} has no column {missing[0]}: not an export as documented."
        )
    present = [name for name in (*required, *optional) if name in database.columns[table]]
    _check_integers(database, table, present, where)
    wanted = ", ".join(f'COALESCE("{name}", ?)' for name in present)
    cursor = database.connection.execute(
        f'SELECT {wanted} FROM "{table}" WHERE {where}', [NULL] * len(present)
    )
    blocks = [np.empty((0, len(present)), dtype=np.int64)]
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        flat = np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * len(present))
        blocks.append(flat.reshape(-1, len(present)))
        database.advance(table, len(rows))
    columns = {
        name: np.concatenate([block[:, index] for block in blocks]) for index, name in enumerate(present)
    }
    num_rows = sum(map(len, blocks))
    return columns | {name: np.full(num_rows, NULL) for name in optional if name not in columns}


def rows(database: Database, table: str, *columns: str) -> Iterator[tuple[int, ...]]:
    """Yield rows of whole numbers, selected as by `integers`; no rows if the table or a column is missing."""
    if set(columns) <= database.columns.get(table, frozenset()):
        found = integers(database, table, columns)
        yield from zip(*(found[name].tolist() for name in columns), strict=True)


def texts(database: Database, table: str, column: str, *, where: str = "1") -> list[str | None]:
    """Return a text column, rows ordered as by `integers` with the same `where`; None for values of other
    types."""
    rows = database.connection.execute(f'SELECT "{column}" FROM "{table}" WHERE {where}')
    return [value if isinstance(value, str) else None for (value,) in rows]


def lookup(database: Database, table: str, key: str, column: str, ids: Ints) -> dict[int, str]:
    """Return by `key` the text in `column`, for the rows of `table` whose `key` is among `ids`."""
    if table not in database or not {key, column} <= database.columns[table]:
        return {}
    found: dict[int, str] = {}
    wanted = np.unique(ids).tolist()
    for first in range(0, len(wanted), 500):
        some = wanted[first : first + 500]
        marks = ", ".join("?" * len(some))
        rows = database.connection.execute(
            f'SELECT "{key}", "{column}" FROM "{table}" WHERE "{key}" IN ({marks})', some
        )
        found |= {row: text for row, text in rows if isinstance(text, str)}
    return found


def _check_header(path: Path) -> None:
    """Refuse a wrong header (100 bytes, https://www.sqlite.org/fileformat.html#the_database_header)."""
    try:
        with untrusted.opened(path) as file:
            header = file.read(100)
        num_bytes = path.stat().st_size
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from error
    if not header:
        raise UsageError(f"{path} is empty.")
    if not header.startswith(_MAGIC[: len(header)]):
        raise UsageError(f"{path} is not a SQLite database: it does not begin as one.")
    page_bytes = int.from_bytes(header[16:18], "big")
    page_bytes = 65536 if page_bytes == 1 else page_bytes
    # The number of pages is valid only if both counters of changes agree.
    expected = int.from_bytes(header[28:32], "big") * page_bytes if header[24:28] == header[92:96] else 0
    if len(header) < 100 or num_bytes < expected:
        raise UsageError(
            f"{path} is cut short: {num_bytes:,} bytes of {max(expected, 100):,}.",
            hint="Copy or export it again.",
        )


def _columns(connection: sqlite3.Connection) -> dict[str, frozenset[str]]:
    """Return the names of ordinary (stored) columns of ordinary tables, by table."""
    tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
    columns = {}
    for name, sql in tables:
        if not isinstance(name, str) or '"' in name or "VIRTUAL" in str(sql).upper().split("(")[0].split():
            continue
        info = connection.execute(f'PRAGMA table_info("{name}")').fetchall()
        columns[name] = frozenset(str(row[1]) for row in info if '"' not in str(row[1]))
    return columns


def _check_integers(database: Database, table: str, columns: Sequence[str], where: str) -> None:
    """Refuse non-integers: SQLite stores any type in any column, and numpy silently reads "12" and 1.5 as
    integers."""
    types = [f'typeof("{name}")' for name in columns]
    wrong = " OR ".join(f"{type_} NOT IN ('integer', 'null')" for type_ in types)
    row = database.connection.execute(
        f'SELECT rowid, {", ".join(types)} FROM "{table}" WHERE ({where}) AND ({wrong}) LIMIT 1'
    ).fetchone()
    if row:
        name, found = next(
            (name, type_)
            for name, type_ in zip(columns, row[1:], strict=True)
            if type_ not in ("integer", "null")
        )
        raise UsageError(
            f"{database.path}: row {row[0]} of table {table} holds {found} in column {name}, where an "
            "integer belongs.",
            hint="Export it again from the .nsys-rep file.",
        )
