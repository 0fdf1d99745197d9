"""Served actors send what inline ones do, and a request that fails is asked again until it is answered."""

import threading
import time

import jax
import numpy as np
import pytest

from podium.protocol.schema import Version
from podium.protocol.streams import InferenceServer
from podium.workers.action_sources import Choice, jit_act
from podium.workers.layout import ActAnswer
from podium.workers.served_actions import ServedActions
from workers.stage import LIMIT_S, Stage, assert_same, play


def choose(policy: ServedActions, count: int, serve=lambda: None) -> list[Choice]:
    """So many choices, with `serve` called between polls."""
    choices: list[Choice] = []
    deadline = time.monotonic() + LIMIT_S
    while len(choices) < count:
        assert time.monotonic() < deadline
        serve()
        choices += policy.poll(0.01)
    return choices


def answer_all(stage: Stage, server: InferenceServer, version: Version, seed: int = 0) -> None:
    """ActAnswer what is pending, as an inference worker would."""
    act = jit_act(stage.algorithm)
    while (batch := server.gather(64, 0.0, 0.0)) is not None:
        answer = act(stage.params(seed), stage.layouts.request.tree(batch.arrays))
        server.reply(batch, version, stage.layouts.answer.arrays(answer))


def request(stage: Stage, mark: int):
    """A request whose answer follows from its mark."""
    rows, fields = stage.rows, stage.layouts.request.tree(stage.layouts.request.schema.fields)
    zeros = jax.tree.map(lambda field: np.zeros((rows, *field.shape), field.dtype), fields)
    return zeros._replace(obs=zeros.obs + mark, key=zeros.key + np.uint32(mark), first=~zeros.first)


def expect_answers(stage: Stage, choices: list[Choice], seed: int = 0) -> None:
    """Each slot got the answer to its own request, which was marked with its number."""
    act = jit_act(stage.algorithm)
    for choice in choices:
        expected: ActAnswer = act(stage.params(seed), request(stage, choice.slot))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), choice.answer, expected)


@pytest.mark.parametrize(
    ("env", "memory", "staleness", "servers"),
    [("Memory-v0", "gru", 1, 2), ("Memory-v0", "gru", 0, 2), ("Masked-v0", "none", 1, 1)],
)
def test_served_fragments_are_those_of_a_plain_loop(env, memory, staleness, servers):
    stage = Stage(2, f"podium:{env}", staleness, memory=memory, servers=servers)
    workers = [stage.serve(server) for server in range(servers)]
    with stage:
        sent = []
        for update in range(3):
            stage.publish(update, seed=0 if staleness else update)
            sent += [stage.receive() for _ in range(2)]
            for one in sent[-2:]:
                one.release()
    for slot in range(2):
        own = [s for s in sent if s.header.slot == slot]
        seeds = [0] * 3 if staleness else [0, 1, 2]
        for one, told in zip(own, play(stage, slot, range(3), seeds), strict=True):
            assert_same(one.record, told)
        if staleness == 0:
            assert [s.header.version for s in own] == [Version(0, 0), Version(0, 1), Version(0, 2)]
    assert sum(worker.metrics()["rows"] for worker in workers) >= 3 * 5 * 4


def test_before_the_first_version_requests_wait_and_later_ones_get_the_newest():
    stage = Stage(4, "podium:Catch-v0", servers=1)
    client = stage.clients[0]
    waited, stop = threading.Semaphore(0), threading.Event()
    worker = stage.serve(0, reconnect=waited.release)
    thread = threading.Thread(target=worker.run, args=(stop,), daemon=True)
    thread.start()
    policy = ServedActions([client], stage.layouts)
    for slot in range(4):
        policy.submit(slot, request(stage, slot))
    for _ in range(2):
        assert waited.acquire(timeout=LIMIT_S)
    assert list(policy.poll(0.0)) == []
    stage.publish(4, seed=4)
    for update in (4, 5):
        choices = choose(policy, 4)
        assert {choice.version for choice in choices} == {Version(0, update)}
        assert policy.version == Version(0, update)
        expect_answers(stage, choices, seed=update)
        if update == 4:
            stage.publish(5, seed=5)
            for slot in range(4):
                policy.submit(slot, request(stage, slot))
    stop.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    metrics = worker.metrics()
    assert metrics["rows"] == 8
    assert metrics["batches"] == 8 / metrics["rows_per_act"]
    assert metrics["request_wait_s"] > 0


def test_a_request_that_fails_is_asked_again_elsewhere_until_it_is_answered():
    # The first server takes requests and never answers.
    stage = Stage(4, "podium:Catch-v0", servers=2, limit=0.2)
    dead, alive = stage.servers
    policy = stage.policy
    assert isinstance(policy, ServedActions)
    for turn in range(3):
        for slot in range(4):
            policy.submit(slot, request(stage, slot))

        def serve() -> None:
            dead.gather(64, 0.0, 0.0)
            answer_all(stage, alive, Version(0, 1))

        choices = choose(policy, 4, serve)
        assert sorted(choice.slot for choice in choices) == [0, 1, 2, 3]
        expect_answers(stage, choices)
        failed = policy.metrics()["inference_failed"]
        # Half of the first turn's went to the dead one; after that at most one at a time is risked.
        assert failed == 2 if turn == 0 else failed <= 2 + turn


def test_when_nobody_answers_no_slot_is_lost():
    stage = Stage(2, "podium:Catch-v0", servers=2, limit=0.05)
    policy = stage.policy
    for slot in range(2):
        policy.submit(slot, request(stage, slot))
    deadline = time.monotonic() + LIMIT_S
    while policy.metrics()["inference_failed"] < 6:
        assert list(policy.poll(0.1)) == []
        assert time.monotonic() < deadline

    def serve() -> None:
        for server in stage.servers:
            answer_all(stage, server, Version(0, 1))

    expect_answers(stage, choose(policy, 2, serve))
    assert list(policy.poll(0.05)) == []


def test_a_worker_that_comes_back_elsewhere_is_asked_there():
    stage = Stage(2, "podium:Catch-v0", servers=1)
    (server,), (client,) = stage.servers, stage.clients
    policy = stage.policy
    for slot in range(2):
        policy.submit(slot, request(stage, slot))
    assert server.gather(64, 0.0, 0.0) is not None
    server.close()
    again = stage.transport.inference_server(*stage.schemas)
    client.rebind(again.endpoint)
    expect_answers(stage, choose(policy, 2, lambda: answer_all(stage, again, Version(1, 0))))
    assert policy.metrics()["inference_failed"] == 2


def test_replaced_clients_requests_are_asked_again_of_the_new_ones():
    stage = Stage(2, "podium:Catch-v0", servers=2)
    policy = stage.policy
    assert isinstance(policy, ServedActions)
    for slot in range(2):
        policy.submit(slot, request(stage, slot))
    other = stage.transport.inference_server(*stage.schemas)
    policy.replace([stage.clients[1], stage.client(other.endpoint)])

    def serve() -> None:
        answer_all(stage, stage.servers[1], Version(0, 2))
        answer_all(stage, other, Version(0, 2))

    choices = choose(policy, 2, serve)
    assert sorted(choice.slot for choice in choices) == [0, 1]
    expect_answers(stage, choices)
    assert policy.metrics()["inference_failed"] == 1
    with pytest.raises(ValueError, match="at least one"):
        policy.replace([])


def test_what_a_worker_was_asked_before_it_went_is_nobodys_answer_when_it_is_back():
    stage = Stage(2, "podium:Catch-v0", servers=2)
    policy, (first, second) = stage.policy, stage.clients
    assert isinstance(policy, ServedActions)
    for slot in range(2):
        policy.submit(slot, request(stage, slot))
    policy.replace([second])
    expect_answers(stage, choose(policy, 2, lambda: answer_all(stage, stage.servers[1], Version(0, 2))))
    again = stage.transport.inference_server(*stage.schemas)
    first.rebind(again.endpoint)  # its request of long ago fails now
    policy.replace([first, second])
    for slot in (1, 0):
        policy.submit(slot, request(stage, slot))

    def serve() -> None:
        answer_all(stage, again, Version(1, 0))
        answer_all(stage, stage.servers[1], Version(1, 0))

    choices = choose(policy, 2, serve)
    assert sorted(choice.slot for choice in choices) == [0, 1]
    expect_answers(stage, choices)


def test_at_staleness_0_an_answer_of_an_older_version_is_asked_for_again():
    stage = Stage(1, "podium:Catch-v0", staleness=0, servers=1)
    policy = stage.policy
    stage.publish(1, seed=1)
    policy.refresh(LIMIT_S)
    assert policy.version == Version(0, 1)
    policy.submit(0, request(stage, 0))
    answer_all(stage, stage.servers[0], Version(0, 0), seed=0)
    assert list(policy.poll(0.05)) == []
    assert policy.metrics()["inference_outdated"] == 1
    (choice,) = choose(policy, 1, lambda: answer_all(stage, stage.servers[0], Version(0, 1), seed=1))
    assert choice.version == Version(0, 1)
    expect_answers(stage, [choice], seed=1)


def test_the_worker_compiles_for_every_size_before_it_is_asked():
    stage = Stage(4, servers=1)
    worker = stage.serve(0, max_rows=4)
    worker.warm_up()
    stage.publish(0)
    compiled: list[str] = []

    def listen(event: str, duration: float, **_: object) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    stage.actor.warm_up()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        with stage:
            stage.receive_released(8)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert compiled == []
    assert worker.metrics()["batches"] > 0
