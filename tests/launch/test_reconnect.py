"""Streams reconnect workers that die and come back, as the directory knows them."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from podium.launch.reconnect import Reconnect
from podium.launch.waiting import wait_for
from podium.orchestrator.worker import STOPPED, WorkerContext
from podium.protocol.directory import Directory
from podium.protocol.membership import Membership, attach
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import InferenceClient, InferenceServer

LIMIT_S = 30.0
NUMBERS = Schema((Field("numbers", (), "float32"),))


class Town:
    """A directory with an actor, which asks inference workers that come and go."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack, self.directory = stack, Directory()
        self.transport = stack.enter_context(MemoryTransport())
        self.actor = self.join("actor", 0, 0)

    def join(self, role: str, index: int, incarnation: int) -> Membership:
        return self.stack.enter_context(attach(self.directory, role, index, incarnation))

    def serve(self, index: int, incarnation: int) -> InferenceServer:
        server = self.transport.inference_server(NUMBERS, NUMBERS)
        self.join("inference", index, incarnation).announce({"inference": server.endpoint})
        return server

    def client(self, server: InferenceServer) -> InferenceClient:
        return self.transport.inference_client(server.endpoint, NUMBERS, NUMBERS, SenderId(0, 0), [1], LIMIT_S)

    def until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.001)


@pytest.fixture
def town() -> Iterator[Town]:
    with ExitStack() as stack:
        yield Town(stack)


def test_servers_that_died_are_left_out_at_once_and_asked_again_when_they_are_back(town: Town) -> None:
    servers = [town.serve(index, 0) for index in range(2)]
    entries = town.actor.wait_for("inference", 2, LIMIT_S)
    clients = [town.client(server) for server in servers]
    told: list[list[InferenceClient]] = []
    reconnect = Reconnect(town.actor, list(zip(entries, clients, strict=True)), told.append)
    reconnect()
    assert told == []
    town.directory.withdraw("inference", 0, 0)  # as the supervisor does for a process that has ended
    town.until(lambda: len(town.actor.entries("inference")) == 1)
    reconnect()
    reconnect()
    assert told == [[clients[1]]]
    town.directory.withdraw("inference", 1, 0)
    town.until(lambda: not town.actor.entries("inference"))
    reconnect()
    assert told == [[clients[1]]], "somebody has to be asked"

    again = town.serve(0, 1)
    town.until(lambda: any(entry.ready for entry in town.actor.entries("inference")))
    reconnect()
    assert told == [[clients[1]], [clients[0]]]
    clients[0].submit(0, [np.ones(1, np.float32)])
    batch = again.gather(8, 0.0, LIMIT_S)
    assert batch is not None
    again.reply(batch, Version(0, 3), batch.arrays)
    (reply,) = clients[0].poll(LIMIT_S)
    assert reply.version == Version(0, 3)


def test_who_is_stopped_while_it_waits_for_others_was_stopped_and_has_not_finished(town: Town) -> None:
    context = WorkerContext("actor", 0, 0, {}, town.actor, town.actor.stop, host="here")
    town.directory.request_stop()
    with pytest.raises(SystemExit) as stopped:
        wait_for(context, lambda: None, "inference", 1)
    assert stopped.value.code == STOPPED
