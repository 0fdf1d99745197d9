"""The directory: leases run out, older incarnations are refused, and whoever has no key learns nothing."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import msgspec
import pytest
import zmq

from podium.core.errors import DirectoryError, RefusedError
from podium.protocol.directory import Directory, Registration, Renewal
from podium.protocol.directory_server import DirectoryServer
from podium.protocol.membership import attach, connect, host_identity
from podium.protocol.run_keys import RunKeys, secure_client

LIMIT_S = 60.0
LEASE_S = 2.0


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(
    role: str = "learner", index: int = 0, incarnation: int = 0, host: str = "one", **rest: object
) -> Registration:
    return Registration(role, index, incarnation, host, 1234, **rest)  # pyright: ignore[reportArgumentType]


def names(entries: list[Registration]) -> list[str]:
    return [f"{one.name}.{one.incarnation}@{one.host}" for one in entries]


def until(true: Callable[[], object]) -> bool:
    end = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


# The table


def test_a_lease_that_is_not_renewed_runs_out_and_one_that_is_does_not() -> None:
    clock = Clock()
    directory = Directory(lease_s=5, clock=clock)
    directory.renew(entry("actor", 0))
    directory.renew(entry("actor", 1))
    clock.now += 4
    directory.renew(entry("actor", 1, progress=7))
    clock.now += 1.5
    assert names(directory.live("actor")) == ["actor-1.0@one"]
    assert names(directory.expired()) == ["actor-0.0@one"]
    assert directory.live()[0].progress == 7
    assert [directory.state("actor", index, 0) for index in (0, 1, 2)] == ["expired", "live", "unknown"]
    clock.now += 5
    assert directory.live() == []


def test_an_expired_worker_that_speaks_again_is_live_again() -> None:
    clock = Clock()
    directory = Directory(lease_s=5, clock=clock)
    directory.renew(entry())
    clock.now += 6
    assert directory.live() == []
    directory.renew(entry())
    assert names(directory.live()) == ["learner-0.0@one"]
    assert directory.expired() == []


def test_an_older_incarnation_is_refused_and_the_newer_one_stays() -> None:
    directory = Directory()
    directory.renew(entry(incarnation=3, host="two"))
    with pytest.raises(RefusedError, match="learner-0: incarnation 2 was replaced by 3"):
        directory.renew(entry(incarnation=2))
    assert names(directory.live()) == ["learner-0.3@two"]


def test_a_restarted_worker_is_found_at_its_new_place_only() -> None:
    clock = Clock()
    directory = Directory(lease_s=5, clock=clock)
    directory.renew(entry(endpoints={"samples": "tcp://one:1"}))
    clock.now += 6
    directory.renew(entry(incarnation=1, host="two", endpoints={"samples": "tcp://two:2"}))
    (found,) = directory.live("learner")
    assert (found.host, found.endpoints) == ("two", {"samples": "tcp://two:2"})
    assert directory.expired() == []


@pytest.mark.parametrize("registered", [True, False])
def test_a_withdrawn_incarnation_never_comes_back(registered: bool) -> None:
    directory = Directory()
    if registered:
        directory.renew(entry(incarnation=1, progress=5))
    directory.withdraw("learner", 0, 1)
    assert directory.live() == directory.expired() == []
    assert directory.state("learner", 0, 1) == "withdrawn"
    with pytest.raises(RefusedError, match="incarnation 1 has withdrawn"):
        directory.renew(entry(incarnation=1))
    last = directory.last("learner", 0, 1)
    assert (last.progress if last else None) == (5 if registered else None)
    directory.renew(entry(incarnation=2))
    directory.withdraw("learner", 0, 1)  # late news of the dead do not touch the living
    assert names(directory.live()) == ["learner-0.2@one"]


def test_the_tables_number_changes_with_places_not_with_progress() -> None:
    clock = Clock()
    directory = Directory(lease_s=5, clock=clock)
    heard: list[int] = []
    directory.watch(lambda: heard.append(directory.epoch))
    directory.renew(entry())
    known = directory.news().epoch
    assert directory.answer(Renewal(entry(progress=9, metrics={"x": 1.0}), epoch=known)).table is None
    moved = directory.answer(Renewal(entry(endpoints={"samples": "tcp://one:1"}), epoch=known))
    assert moved.table is not None
    assert moved.epoch != known
    clock.now += 6
    assert directory.news(epoch=moved.epoch).table == []  # a lease that runs out is a change, too
    directory.request_stop()
    directory.request_stop()
    assert directory.news().stop
    assert len(heard) == len(set(heard)) == 4


def test_members_hear_only_of_the_roles_that_they_asked_for() -> None:
    directory = Directory()
    directory.renew(entry("learner"))
    known = directory.news(["learner"]).epoch
    directory.renew(entry("actor", 1))
    assert directory.news(["learner"], known).table is None
    assert names(directory.news(["actor"], known).table or []) == ["actor-1.0@one"]
    assert directory.news(["nobody"]).table == []


# Members


@pytest.fixture
def directory() -> Directory:
    return Directory(LEASE_S)


@pytest.fixture
def keys() -> RunKeys:
    return RunKeys.generate()


@pytest.fixture
def server(directory: Directory, keys: RunKeys) -> Iterator[DirectoryServer]:
    with DirectoryServer(directory, keys, "127.0.0.1") as server:
        yield server


def member_process(endpoint: str, keys: RunKeys, role: str, incarnation: int, host: str, pipe: Connection) -> None:
    """A membership in a process of its own: does what it is told, until told to leave."""
    with connect(endpoint, keys, role, 0, incarnation, host=host) as membership:
        while (told := pipe.recv()) != "leave":
            if told == "find":
                pipe.send([(one.host, one.endpoints) for one in membership.wait_for("learner", 1, LIMIT_S)])
            elif told == "stopped":
                pipe.send(membership.stop.wait(LIMIT_S))
            else:
                membership.progress += 1
                membership.metrics = {"speed": 2}
                membership.announce(told)
                pipe.send(None)


class RemoteMember:
    """The test's end of such a process."""

    def __init__(self, *args: object) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=member_process, args=(*args, theirs), daemon=True)
        self.process.start()

    def ask(self, what: object) -> object:
        self._pipe.send(what)
        assert self._pipe.poll(LIMIT_S)
        return self._pipe.recv()

    def leave(self) -> None:
        if self.process.is_alive():
            self._pipe.send("leave")
        self.process.join(LIMIT_S)
        assert self.process.exitcode is not None
        self._pipe.close()


def test_members_in_two_processes_find_each_other_and_a_successor_elsewhere(
    directory: Directory, server: DirectoryServer, keys: RunKeys
) -> None:
    client = keys.for_clients()
    memberships = [
        RemoteMember(server.endpoint, client, "actor", 0, "one"),
        RemoteMember(server.endpoint, client, "learner", 0, "one"),
    ]
    try:
        actor, learner = memberships
        learner.ask({"samples": "tcp://one:1"})
        assert actor.ask("find") == [("one", {"samples": "tcp://one:1"})]
        assert until(lambda: [(one.progress, one.metrics) for one in directory.live("learner")] == [(1, {"speed": 2})])

        learner.process.kill()
        assert until(lambda: names(directory.expired()) == ["learner-0.0@one"])
        assert until(lambda: names(directory.live()) == ["actor-0.0@one"])

        memberships.append(RemoteMember(server.endpoint, client, "learner", 1, "two"))
        memberships[-1].ask({"samples": "tcp://two:2"})
        assert until(lambda: actor.ask("find") == [("two", {"samples": "tcp://two:2"})])

        directory.request_stop()
        assert actor.ask("stopped") is True
    finally:
        for membership in memberships:
            membership.leave()
    assert until(lambda: directory.live() == [])
    assert directory.expired() == []  # those who leave withdraw
    assert server.malformed == 0


def test_whoever_has_another_key_gets_nothing(directory: Directory, server: DirectoryServer, keys: RunKeys) -> None:
    with pytest.raises(DirectoryError, match=r"actor-0: the directory did not answer for 0\.5 s"):
        connect(server.endpoint, RunKeys.generate().for_clients(), "actor", 0, 0, timeout=0.5)
    assert directory.state("actor", 0, 0) == "unknown"
    with connect(server.endpoint, keys.for_clients(), "actor", 0, 0, timeout=LIMIT_S):
        assert directory.state("actor", 0, 0) == "live"


def test_malformed_messages_are_counted_and_cost_nobody_anything(server: DirectoryServer, keys: RunKeys) -> None:
    good = msgspec.msgpack.encode(Renewal(entry()))
    bad = [b"", b"\xc1", good[:-3], msgspec.msgpack.encode({"entry": {"role": 3}}), msgspec.msgpack.encode([1, 2])]
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        secure_client(socket, keys.for_clients())
        socket.linger = 0
        socket.connect(server.endpoint)
        for frame in bad:
            socket.send(frame)
        socket.send_multipart([good, good])
        socket.send(good)
        assert socket.poll(int(1000 * LIMIT_S))  # only the last one has an answer
        assert msgspec.msgpack.decode(socket.recv())["stop"] is False
    assert server.malformed == len(bad) + 1
    with connect(server.endpoint, keys.for_clients(), "actor", 0, 0, timeout=LIMIT_S) as membership:
        assert names(membership.entries("learner")) == ["learner-0.0@one"]


def test_a_replaced_incarnation_is_refused_at_the_door_and_stopped_inside(
    directory: Directory, server: DirectoryServer, keys: RunKeys
) -> None:
    with connect(server.endpoint, keys.for_clients(), "actor", 0, 0, timeout=LIMIT_S) as old:
        with connect(server.endpoint, keys.for_clients(), "actor", 0, 1, timeout=LIMIT_S):
            assert old.stop.wait(LIMIT_S)
            assert old.refused == "actor-0: incarnation 0 was replaced by 1"
            with pytest.raises(DirectoryError, match="incarnation 0 was replaced by 1"):
                connect(server.endpoint, keys.for_clients(), "actor", 0, 0, timeout=LIMIT_S)
        assert not old.lost


def test_a_silent_directory_means_that_the_launcher_is_lost(directory: Directory, keys: RunKeys) -> None:
    directory.lease_s = 0.2
    with DirectoryServer(directory, keys, "127.0.0.1") as server:
        membership = connect(server.endpoint, keys.for_clients(), "actor", 0, 0, timeout=LIMIT_S)
        assert not membership.stop.is_set()
    with membership:
        assert membership.stop.wait(LIMIT_S)
        assert membership.lost


def test_a_started_anew_directory_knows_its_members_again(directory: Directory) -> None:
    """What an orchestrator that was restarted relies on: memberships need do nothing for it."""
    news = directory.answer(Renewal(entry("actor", 2, 5, progress=8), epoch=directory.news().epoch))
    assert names(news.table or []) == ["actor-2.5@one"]
    afresh = Directory(LEASE_S)
    news = afresh.answer(Renewal(entry("actor", 2, 5, progress=8), epoch=news.epoch))
    assert names(news.table or []) == ["actor-2.5@one"]


def test_members_of_one_process_need_no_sockets(directory: Directory) -> None:
    with attach(directory, "learner", 0, 0) as learner, attach(directory, "actor", 0, 0, host="two") as actor:
        assert actor.wait_for("learner", 1, timeout=0.01) == []  # it has not announced itself
        waiting = threading.Timer(0.01, learner.announce, [{"samples": "memory://1"}])
        waiting.start()
        (found,) = actor.wait_for("learner", 1, LIMIT_S)
        waiting.join()
        assert found.endpoints == {"samples": "memory://1"}
        assert found.host == host_identity() != "two"
        learner.progress += 3
        assert until(lambda: [one.progress for one in directory.live("learner")] == [3])
        directory.request_stop()
        assert actor.stop.wait(LIMIT_S)
        assert not actor.lost
        learner.progress += 1
    last = directory.last("learner", 0, 0)
    assert last is not None
    assert last.progress == 4  # the last word of one that leaves counts
    assert directory.state("learner", 0, 0) == "withdrawn"


def test_looking_up_a_role_without_an_edge_is_a_bug_that_is_named(directory: Directory) -> None:
    with attach(directory, "actor", 0, 0, roles=["learner"]) as membership:
        assert membership.entries("learner") == []
        with pytest.raises(ValueError, match="actor has no edge to 'replay'"):
            membership.wait_for("replay", 1, LIMIT_S)


def test_a_wait_ends_when_somebody_else_sets_stop(directory: Directory) -> None:
    stop = threading.Event()
    with attach(directory, "actor", 0, 0, stop=stop) as membership:
        setter = threading.Timer(0.01, stop.set)
        setter.start()
        assert membership.wait_for("learner", 1, timeout=LIMIT_S) == []
        setter.join()


def test_a_metric_that_is_no_number_fails_where_it_is_set(directory: Directory) -> None:
    with attach(directory, "actor", 0, 0) as membership, pytest.raises(TypeError):
        membership.metrics = {"loss": None}  # pyright: ignore[reportAttributeAccessIssue]
