"""Studies in a database: who leads, who has a block, and that no result is lost or counts twice."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback

import msgspec
import pytest
from msgspec.structs import replace

from dynotune.fleet import open_store
from dynotune.fleet import store as storage
from dynotune.schema.errors import CannotRunHere, RecordError, StorageLost, UsageError
from dynotune.schema.setting import Setting
from dynotune.schema.study import BlockResult, HostBlock, Study, Trial

from ..fakes import of_run
from .conftest import PASSWORD

DEADLINE_S = 120
STUDY = of_run(Study, id="s", name="s", budget_s=60.0)
# Runs blocks until the study is finished: a trial a block, which says who made it. Says so when it has one,
# and waits at the block of this number until it is killed.
WORKER = """
import sys, time
from msgspec.structs import replace
from dynotune.fleet import open_store
from dynotune.schema.study import BlockResult, Study, Trial
url, number = sys.argv[1], int(sys.argv[2])
with open_store(url, print, lease_s=10.0) as store:
    known = store.study("s")
    store.enter(known, "asked", "/runs")
    while not known.finished:
        if (taken := store.take()) is not None:
            id_, block = taken
            if block.number == number:
                print("has it", flush=True)
                time.sleep(1000)
            trial = Trial(arm="", phase="prune", block=block.number, ended="measured", value=1.0, run=store.me)
            store.give(id_, BlockResult(trials=[trial]))
        time.sleep(0.01)  # between two looks
        known = store.study("s")
"""  # noqa: E501


def block(number: int = 1, **fields) -> HostBlock:
    return HostBlock(**({"phase": "prune", "number": number, "arms": [[]], "repeats": 2} | fields))


def trial(number: int, **fields) -> Trial:
    return Trial(
        **({"arm": "", "phase": "prune", "block": number, "ended": "measured", "value": 1.0} | fields)
    )


def entered(url, name="s", **more):
    store = open_store(url, pytest.fail, **more)
    store.enter(replace(STUDY, name=name), "asked", "/runs")
    return store


@pytest.fixture
def alone(url):
    with entered(url) as store:
        yield store


@pytest.mark.parametrize("num_workers", [2, pytest.param(8, marks=pytest.mark.long)])
def test_workers_of_which_one_is_killed_lose_no_result_and_double_none(url, num_workers):
    num_blocks = 5 * num_workers
    with entered(url, lease_s=10.0) as leader:
        assert leader.lead()
        words = [sys.executable, "-c", WORKER, url]
        doomed = subprocess.Popen([*words, "0"], stdout=subprocess.PIPE, text=True)
        others = [subprocess.Popen([*words, "-1"]) for _ in range(num_workers - 1)]
        try:
            results = {}
            until(lambda: len(leader.names()) == num_workers)
            the_doomed = next(name for name in leader.names() if f"-{doomed.pid}-" in name)
            hosts = [the_doomed, *(name for name in leader.names() if name != the_doomed)]

            def ask(number):
                results[number] = leader.run(hosts[number % num_workers], block(number), lambda: None)

            asking = [threading.Thread(target=ask, args=(number,)) for number in range(num_blocks)]
            for thread in asking:
                thread.start()
            assert doomed.stdout.readline() == "has it\n"
            doomed.send_signal(signal.SIGKILL)
            for thread in asking:
                thread.join(DEADLINE_S)
            trials = [one for number in sorted(results) for one in results[number].trials]
            assert [one.block for one in trials] == list(range(num_blocks))
            # It may have ended others before the one that it was killed with.
            assert trials[0].run != the_doomed
            leader.save(replace(STUDY, trials=trials, finished=True))
            assert [one.wait(DEADLINE_S) for one in others] == [0] * len(others)
            assert [one.block for one in leader.study("s").trials] == list(range(num_blocks))
        finally:
            for process in (doomed, *others):
                process.kill()
                process.wait()
            doomed.stdout.close()


def until(ask):
    deadline_s = time.monotonic() + DEADLINE_S
    while not ask():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_a_study_is_read_as_it_was_written_with_the_places_of_its_runs(alone):
    alone.lead()
    trials = [trial(1, run="0001-prune"), trial(2, run="other:/runs/x/0001-prune"), trial(3)]
    study = replace(STUDY, trials=trials, verdict="Nothing – “yet”.", warnings=["\udcff"])
    alone.save(study)
    found = alone.study("s")
    here = f"{os.uname().nodename}:/runs/0001-prune"
    assert found == replace(study, trials=[replace(trials[0], run=here), *trials[1:]])
    assert [one.was_elsewhere for one in found.trials] == [True, True, False]
    changed = [replace(trials[0], void="lost"), trial(4)]
    alone.save(replace(study, trials=changed))
    assert [(one.block, one.void) for one in alone.study("s").trials] == [(1, "lost"), (4, "")]
    assert [(one.name, len(one.trials), workers) for one, workers in alone.studies()] == [("s", 2, 1)]


def test_one_worker_leads_until_it_leaves_or_dies(url):
    with entered(url) as first, entered(url) as second:
        assert first.lead() and not second.lead() and first.lead()
        first.__exit__()
        assert second.lead()
    with entered(url, lease_s=0.0) as third, entered(url, lease_s=0.0) as fourth:
        assert third.lead() and fourth.lead()
        with pytest.raises(CannotRunHere, match="Another worker leads the study s"):
            third.save(STUDY)
        fourth.save(replace(STUDY, finished=True))
        assert not fourth.lead()


@pytest.mark.parametrize("by_s", [-1e6, -90.0, 90.0, 1e6])
def test_nobody_takes_over_when_the_clock_of_the_database_is_set(url, monkeypatch, by_s):
    with entered(url) as leader, entered(url) as other:
        assert leader.lead() and not other.lead()
        for name, now in list(storage._NOW.items()):
            monkeypatch.setitem(storage._NOW, name, f"({now} + {by_s})")
        assert not other.lead() and leader.lead()
        assert other.names() == [leader.me]
        other._lost_s -= storage.LEASE_S  # the leader gives no sign all that time
        assert other.lead()


def test_lead_of_a_dead_worker_is_free_when_its_last_sign_is_from_the_future(url):
    with entered(url) as dead, entered(url) as other:
        assert dead.lead()
        with other._transaction() as do:
            do("UPDATE worker SET seen = seen + 31536000 WHERE id = :dead", dead=dead.me)
        assert other.lead()


def test_heartbeats_of_a_lease_of_no_length_pause_for_the_other_writers(tmp_path, monkeypatch):
    pauses_s, is_second = [], threading.Event()

    def wait(event, timeout=None):
        if threading.current_thread() is threading.main_thread():
            return waits(event, timeout)
        pauses_s.append(timeout)
        is_second.set()
        return True

    waits = threading.Event.wait
    monkeypatch.setattr(threading.Event, "wait", wait)
    with entered(f"sqlite:///{tmp_path}/studies.db", lease_s=0.0):
        assert waits(is_second, DEADLINE_S)
    assert min(pauses_s) >= storage.POLL_S


def test_a_block_is_for_the_worker_it_is_offered_to_until_that_is_lost(url):
    with entered(url) as leader, entered(url) as mine, entered(url) as other:
        waiting = threading.Thread(target=leader.run, args=(mine.me, block(), lambda: None), daemon=True)
        waiting.start()
        until(lambda: _number_of(leader, "result IS NULL") == 1)
        assert other.take() is None
        id_, taken = mine.take()
        assert taken == block()
        assert other.take() is None
        mine.__exit__()
        assert other.take() == (id_, block())
        # Whoever was taken for dead gives in vain.
        assert not mine.give(id_, BlockResult(trials=[trial(1)]))
        assert other.give(id_, BlockResult())
        assert not other.give(id_, BlockResult())
        waiting.join(DEADLINE_S)
        assert leader.run(other.me, block(), lambda: None) == BlockResult()


def _number_of(store, condition):
    with store._transaction() as do:
        return do(f"SELECT count(*) FROM block WHERE {condition}").scalar()


def test_a_block_that_nobody_is_left_for_comes_back_to_its_leader(url):
    with entered(url) as leader:
        assert leader.run("gone", block(), lambda: None) is None
        assert _number_of(leader, "TRUE") == 0


def test_nobody_waits_for_a_block_any_more_that_was_interrupted(url):
    class Stopped(Exception):
        pass

    def stop():
        raise Stopped

    with entered(url) as leader, entered(url) as other, pytest.raises(Stopped):
        leader.run(other.me, block(), stop)


def test_two_studies_of_one_name_are_told_apart_by_what_they_were_asked(url):
    with entered(url), open_store(url, pytest.fail) as other:
        with pytest.raises(
            UsageError, match="The study s exists already, with another command, other"
        ) as refused:
            other.enter(STUDY, "something else", "/runs")
        assert "--study" in refused.value.hint
    with open_store(url, pytest.fail) as store, pytest.raises(UsageError, match="no study t"):
        store.study("t")


def test_tables_are_brought_up_to_date_in_order_and_newer_ones_are_left_alone(url, monkeypatch):
    known = storage.MIGRATIONS
    monkeypatch.setattr(storage, "MIGRATIONS", known[:1])
    with entered(url) as store:
        store.save(replace(STUDY, verdict="kept"))
    monkeypatch.setattr(storage, "MIGRATIONS", known)
    with entered(url) as store:
        assert store.study("s").verdict == "kept"
        assert store.take() is None
        with store._transaction() as do:
            assert do("SELECT version FROM dynotune_schema ORDER BY version").scalars().all() == [1, 2]
            do("INSERT INTO dynotune_schema VALUES (99)")
    with pytest.raises(CannotRunHere, match="A newer dynotune wrote this database: version 99"):
        open_store(url, pytest.fail)


def test_several_may_be_the_first_to_open_a_database(url):
    made = []
    opening = [threading.Thread(target=lambda: made.append(entered(url))) for _ in range(8)]
    for thread in opening:
        thread.start()
    for thread in opening:
        thread.join(DEADLINE_S)
    assert len(made) == 8
    for store in made:
        store.__exit__()


def test_a_database_that_went_away_is_told_of_once_and_gets_all_of_it_when_it_is_back(server, monkeypatch):
    told = []
    with open_store(server.url, told.append) as store:
        store.enter(STUDY, "asked", "/runs")
        store.save(replace(STUDY, trials=[trial(1)]))
        server.stop()
        try:
            store.save(replace(STUDY, trials=[trial(1), trial(2)]))
            store.save(replace(STUDY, trials=[trial(1), trial(2), trial(3)]))
            assert store.behind
            assert store.names() == []
            assert store.run("other", block(), lambda: None) is None
            store.patience_s = 0.0
            with pytest.raises(StorageLost, match="does not answer") as lost:
                store.patiently(lambda: store.study("s"))
        finally:
            server.start()
        store.save(replace(STUDY, trials=[trial(1), trial(2), trial(3)]))
        assert not store.behind
        assert [one.block for one in store.study("s").trials] == [1, 2, 3]
    assert len(told) == 1
    assert PASSWORD not in told[0] + lost.value.message and "127.0.0.1" in told[0]


def test_a_server_that_refuses_is_said_without_the_password(server):
    wrong = server.url.replace(PASSWORD, "An0ther-word")
    with pytest.raises(StorageLost, match="password authentication failed") as refused:
        open_store(wrong, pytest.fail)
    assert "An0ther-word" not in refused.value.message


@pytest.mark.parametrize(
    "url, said",
    [
        ("studies.db", "not the URL of a database"),
        ("mysql://u:p@h/d", "knows no mysql"),
        ("", "not the URL"),
        ("sqlite://", "not the URL"),
        ("sqlite:///:memory:", "not the URL"),
        ("postgresql://me:Unqu@ted-word@h/d", "not the URL"),
        ("postgresql://h:Unquted-word/d", "not the URL"),
    ],
)
def test_a_url_of_no_known_database_is_refused(url, said):
    with pytest.raises(UsageError, match=said) as refused:
        open_store(url, pytest.fail)
    assert "sqlite:///" in refused.value.hint
    assert "ted-word" not in "".join(traceback.format_exception(refused.value))


def test_a_driver_of_another_kind_is_not_what_is_used(tmp_path):
    with open_store(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}", pytest.fail) as store:
        assert store.studies() == []


def test_a_server_that_vanished_is_not_waited_for_longer_than_one_that_refuses(server):
    with open_store(server.url, pytest.fail) as store, store._engine.connect() as connection:
        given = connection.connection.dbapi_connection.info.get_parameters()
    assert (given["connect_timeout"], given["tcp_user_timeout"]) == ("10", "10000")


def test_a_folder_that_is_not_there_is_no_traceback(tmp_path):
    with pytest.raises(StorageLost, match="unable to open database file"):
        open_store(f"sqlite:///{tmp_path / 'none' / 'studies.db'}", pytest.fail)


def test_open_store_says_how_to_install_a_module_that_is_missing(monkeypatch):
    for module in ("sqlalchemy", "psycopg"):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(UsageError, match=f"needs {module}, which is not installed") as refused:
            open_store("postgresql://h/d", pytest.fail)
        assert refused.value.hint == "pip install 'dynotune[storage]'"
        monkeypatch.undo()


def test_a_record_that_somebody_damaged_is_said_to_be(alone):
    with alone._transaction() as do:
        do("UPDATE study SET document = '{'")
    with pytest.raises(Exception, match="not a complete JSON document"):
        alone.study("s")


def test_rows_of_any_size_and_type_are_said_to_be_damaged_and_the_others_listed(url, monkeypatch):
    told = []
    with entered(url, name="t"), open_store(url, told.append) as store:
        store.enter(STUDY, "asked", "/runs")
        monkeypatch.setattr(storage, "_TEXT", storage._TEXT.replace("67108864", "2000"))
        hostile = [
            "[" * 5000,
            "7",
            "null",
            '{"schema": "dynotune.study/99"}',
            _text(verdict="x" * 3000),
            _text(trials=3),
        ]
        for text in hostile:
            with store._transaction() as do:
                do("UPDATE study SET document = :text WHERE name = 's'", text=text)
            with pytest.raises(RecordError):
                store.study("s")
            assert [one.name for one, _ in store.studies()] == ["t"]
        assert len(told) == len(hostile) and all(
            text.startswith("Study s: ") and len(text) < 300 for text in told
        )
        with store._transaction() as do:
            do("INSERT INTO block VALUES ('s', 'x', 1, '[', 'gone', NULL)")
        with pytest.raises(RecordError):
            store.take()
        assert leading(store).run("x", block(), lambda: None) is None


def foreign(tmp_path, *statements: str) -> str:
    """The URL of a database of another program."""
    with sqlite3.connect(tmp_path / "foreign.db") as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return f"sqlite:///{tmp_path}/foreign.db"


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS name FROM n"


def test_listing_refuses_and_changes_nothing_when_a_database_is_of_another_program(tmp_path):
    url = foreign(tmp_path, "CREATE TABLE bookmarks (url TEXT)")
    before = (tmp_path / "foreign.db").read_bytes()
    with pytest.raises(UsageError, match="not of dynotune's studies"):
        open_store(url, pytest.fail, reads_only=True)
    with pytest.raises(StorageLost):
        open_store(f"sqlite:///{tmp_path}/mistyped.db", pytest.fail, reads_only=True)
    assert [path.name for path in tmp_path.iterdir()] == ["foreign.db"]
    assert (tmp_path / "foreign.db").read_bytes() == before


@pytest.mark.parametrize("reads_only", [True, False])
@pytest.mark.parametrize("view", ["study", "worker", "dynotune_schema"])
def test_a_view_in_place_of_a_table_is_refused_when_it_would_compute_forever(tmp_path, view, reads_only):
    open_store(url := f"sqlite:///{tmp_path}/foreign.db", pytest.fail).__exit__()
    foreign(tmp_path, f"DROP TABLE {view}", f"CREATE VIEW {view} AS {ENDLESS}")
    with pytest.raises(UsageError, match=f"no table {view}"):
        open_store(url, pytest.fail, reads_only=reads_only)


COMPUTED = "document TEXT GENERATED ALWAYS AS (printf('%.*c', 60000000, 'x')) VIRTUAL"
CHANGES = {
    "a computed column": [
        f"CREATE TABLE other (name TEXT, asked TEXT, {COMPUTED}, finished INTEGER, began REAL, leader TEXT)",
        "DROP TABLE study",
        "ALTER TABLE other RENAME TO study",
    ],
    "a trigger": [f"CREATE TRIGGER t AFTER INSERT ON worker BEGIN INSERT INTO study {ENDLESS}; END"],
    "an index": ["CREATE INDEX i ON study (printf('%.*c', 60000000, name))"],
}


@pytest.mark.parametrize("reads_only", [True, False])
@pytest.mark.parametrize("statements", CHANGES.values(), ids=CHANGES)
def test_a_table_is_refused_when_another_program_changed_it(tmp_path, statements, reads_only):
    open_store(url := f"sqlite:///{tmp_path}/foreign.db", pytest.fail).__exit__()
    foreign(tmp_path, *statements)
    with pytest.raises(UsageError, match="another program made or changed its table"):
        open_store(url, pytest.fail, reads_only=reads_only)


SERVER_CHANGES = {
    "a trigger": [
        "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER t BEFORE INSERT ON worker FOR EACH ROW EXECUTE FUNCTION f()",
    ],
    "a rule": ["CREATE RULE r AS ON INSERT TO worker DO ALSO SELECT pg_sleep(1)"],
    "a policy": ["ALTER TABLE study ENABLE ROW LEVEL SECURITY"],
    "a check": ["ALTER TABLE block ADD CHECK (pg_sleep(1) IS NOT NULL)"],
    "a computed column": ["ALTER TABLE study ADD more TEXT GENERATED ALWAYS AS (repeat(name, 1000)) STORED"],
    "a view": ["ALTER TABLE block RENAME TO old", "CREATE VIEW block AS SELECT * FROM old"],
}


@pytest.mark.parametrize("statements", SERVER_CHANGES.values(), ids=SERVER_CHANGES)
def test_a_table_of_a_server_is_refused_when_somebody_changed_it(server, statements):
    import sqlalchemy as sa

    open_store(server.url, pytest.fail).__exit__()
    engine = sa.create_engine(server.url.replace("postgresql:", "postgresql+psycopg:"))
    try:
        with engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)
        for reads_only in (True, False):
            with pytest.raises(UsageError, match="not of dynotune's studies"):
                open_store(server.url, pytest.fail, reads_only=reads_only)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE")
            connection.exec_driver_sql("CREATE SCHEMA public")
        engine.dispose()


def test_a_listing_leaves_studies_out_when_they_are_too_many_or_too_large(tmp_path, monkeypatch):
    told = []
    with entered(url := f"sqlite:///{tmp_path}/many.db"), entered(url, "t"), entered(url, "u"):
        pass
    with open_store(url, told.append, reads_only=True) as store:
        assert [study.name for study, _ in store.studies()] == ["s", "t", "u"]
        monkeypatch.setattr(storage, "MOST_STUDIES", 2)
        assert [study.name for study, _ in store.studies()] == ["s", "t"]
        monkeypatch.setattr(storage, "MOST_TEXT_BYTES", len(storage._encoded(STUDY)) + 10)
        assert [study.name for study, _ in store.studies()] == ["s"]
    assert [text.partition(" ")[0] for text in told] == ["The", "The", "Study"] and "t and the" in told[2]


def test_a_transaction_ends_when_a_foreign_database_computes_too_long(tmp_path, monkeypatch):
    with open_store(f"sqlite:///{tmp_path}/foreign.db", pytest.fail) as store:
        monkeypatch.setattr(storage, "LONGEST_TRANSACTION_S", -1.0)
        with pytest.raises(StorageLost, match="interrupted"), store._transaction() as do:
            do(f"SELECT max(name) FROM ({ENDLESS})")


def test_an_interrupt_ends_a_transaction_when_a_foreign_database_computes(tmp_path):
    url, previous = (
        f"sqlite:///{tmp_path}/foreign.db",
        signal.signal(signal.SIGALRM, signal.default_int_handler),
    )
    try:
        with (
            open_store(url, pytest.fail) as store,
            pytest.raises(KeyboardInterrupt),
            store._transaction() as do,
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            do(f"SELECT max(name) FROM ({ENDLESS})")
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_a_version_that_is_no_number_is_said_to_be_damaged(tmp_path):
    open_store(url := f"sqlite:///{tmp_path}/foreign.db", pytest.fail).__exit__()
    foreign(tmp_path, "UPDATE dynotune_schema SET version = 'newest'")
    with pytest.raises(RecordError, match="version is not a number"):
        open_store(url, pytest.fail)


def test_one_row_that_is_no_text_is_warned_of_and_the_others_are_listed(tmp_path):
    with entered(url := f"sqlite:///{tmp_path}/foreign.db"), entered(url, "t"):
        foreign(tmp_path, "UPDATE study SET document = CAST(x'7b2261223a22ff227d' AS TEXT) WHERE name = 's'")
    told = []
    with open_store(url, told.append, reads_only=True) as store:
        assert [study.name for study, _ in store.studies()] == ["t"]
    assert len(told) == 1 and told[0].startswith("Study s: ")


def _text(**fields) -> str:
    return json.dumps(json.loads(storage._encoded(STUDY)) | fields)


def leading(store):
    assert store.lead()
    return store


def test_runs_that_no_host_made_are_read_nowhere(alone):
    alone.lead()
    for run in ("../../etc", "/etc"):
        with alone._transaction() as do:
            text = storage._encoded(replace(STUDY, trials=[trial(1, run=run)]))
            do("UPDATE study SET document = :text", text=text)
        with pytest.raises(RecordError, match="runs without the host"):
            alone.study("s")


def test_no_block_is_offered_while_the_database_lacks_what_a_worker_has_to_know(url):
    with entered(url) as leader, entered(url) as other:
        leader.behind = True
        assert leader.run(other.me, block(), pytest.fail) is None
        assert other.take() is None


def test_arms_reach_the_worker_as_they_were(alone):
    asked = block(arms=[[Setting("env.A", "1"), Setting("loader.num_workers", 2)], []], attempt=3)
    assert msgspec.json.decode(storage._encoded(asked), type=HostBlock) == asked


def test_after_an_outage_nobody_takes_over_from_a_leader_that_could_give_no_sign(server):
    told = []
    with (
        open_store(server.url, told.append) as leader,
        open_store(server.url, told.append, lease_s=1000.0) as other,
    ):
        leader.enter(STUDY, "asked", "/runs")
        other.enter(STUDY, "asked", "/runs")
        server.stop()
        server_is_back = threading.Timer(0.2, server.start)
        server_is_back.start()
        other.patiently(lambda: other.study("s"))
        server_is_back.join()
        with other._transaction() as do:
            do("UPDATE worker SET seen = 0")
        assert not other.lead()
        assert leader.lead()


def test_an_outage_counts_though_only_the_sign_that_is_given_beside_work_met_it(server):
    with (
        open_store(server.url, pytest.fail) as leader,
        open_store(server.url, pytest.fail, lease_s=1000.0) as doomed,
        open_store(server.url, pytest.fail, lease_s=1000.0) as other,
    ):
        for store in (leader, doomed):
            store.enter(STUDY, "asked", "/runs")
        other._lease_s = 0.2  # between its signs
        other.enter(STUDY, "asked", "/runs")
        with leader._transaction() as do:
            row = {"text": storage._encoded(block()), "doomed": doomed.me}
            do("INSERT INTO block VALUES ('s', 'x', 1, :text, :doomed, NULL)", **row)
        server.stop()
        try:
            until(lambda: other._lost_s > 0)
        finally:
            server.start()
        other._lease_s = 1000.0
        with leader._transaction() as do:
            do("UPDATE worker SET seen = 0")
        assert not other.lead() and other.take() is None
        assert doomed.take() == ("x", block()) and leader.lead()


def test_nothing_of_a_plain_study_needs_a_database_or_a_cluster():
    script = "import sys, dynotune.cli.tune, dynotune.search.tune, dynotune.fleet; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "psycopg", "ray"} & {*done.stdout.split()}
