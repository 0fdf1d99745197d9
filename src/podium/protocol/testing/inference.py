"""The promises of an inference stream: a reply belongs to its request, or the request fails in time."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np

from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import InferenceClient, InferenceServer, Reply, RequestBatch, Transport
from podium.protocol.testing.subject import LIMIT, MOMENT, Subject, expect, opened, within

REQUEST = Schema((Field("obs", (3,), "float32"), Field("key", (), "uint32"), Field("first", (), "bool")))
REPLY = Schema((Field("action", (2,), "float32"), Field("key", (), "uint32")))
FIRST = Version(0, 0)


def request(rows: int, mark: int) -> list[np.ndarray]:
    """A request whose numbers all follow from its mark."""
    obs = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3) + 1000 * mark
    return [obs, np.arange(rows, dtype=np.uint32) + 100 * mark, np.ones(rows, bool)]


def answer(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the policy of these checks replies: a function of each row alone."""
    obs, key, _ = arrays
    return [obs[:, :2] * 2 + 1, key + np.uint32(7)]


def serve(server: InferenceServer, rows: int, version: Version = FIRST) -> list[RequestBatch]:
    """Gather and answer until so many rows were served."""
    batches: list[RequestBatch] = []
    served = 0
    for _ in within("requests are gathered"):
        if (batch := server.gather(256, 0.0, 1.0)) is not None:
            check_padding(batch)
            server.reply(batch, version, answer(batch.arrays))
            batches.append(batch)
            served += batch.rows
        if served >= rows:
            expect(served == rows, f"{rows} rows were asked for, {served} came")
            return batches
    raise AssertionError


def check_padding(batch: RequestBatch) -> None:
    """Rows are padded to the next power of two, with zeros."""
    padded = 1 << (batch.rows - 1).bit_length()
    for field, array in zip(REQUEST.fields, batch.arrays, strict=True):
        expect(array.shape == (padded, *field.shape), f"{batch.rows} rows are padded to {padded}: {array.shape}")
        expect(array.dtype == np.dtype(field.dtype), "a batch has the schema's dtypes")
        expect(not array[batch.rows :].any(), "padding is zeros")


def poll(client: InferenceClient, slots: Sequence[int]) -> dict[int, Reply]:
    """The replies of these slots, which must come, and no others."""
    replies: dict[int, Reply] = {}
    for _ in within("a reply or failure comes"):
        for reply in client.poll(1.0):
            expect(reply.slot in slots and reply.slot not in replies, f"slot {reply.slot} was answered unasked")
            replies[reply.slot] = reply
        if len(replies) == len(slots):
            return replies
    raise AssertionError


def expect_answer(reply: Reply, rows: int, mark: int, version: Version = FIRST) -> None:
    """A reply is the policy's answer to the request of this mark."""
    expect(reply.arrays is not None, "a request that was served does not fail")
    assert reply.arrays is not None
    for mine, theirs in zip(answer(request(rows, mark)), reply.arrays, strict=True):
        expect(mine.dtype == theirs.dtype and np.array_equal(mine, theirs), "a reply belongs to its request")
    expect(reply.version == version and isinstance(reply.version, Version), "a reply carries the policy's version")


@contextmanager
def served(
    subject: Subject, rows: Sequence[Sequence[int]], limit: float = LIMIT
) -> Iterator[tuple[Transport, Transport, ExitStack, InferenceServer, list[InferenceClient]]]:
    """A server and a client for each list of rows."""
    with opened(subject) as (serving, connecting, ends):
        server = serving.inference_server(REQUEST, REPLY)
        ends.callback(server.close)
        clients = [
            connecting.inference_client(server.endpoint, REQUEST, REPLY, SenderId(worker, 0), own, limit)
            for worker, own in enumerate(rows)
        ]
        for client in clients:
            ends.callback(client.close)
        yield serving, connecting, ends, server, clients


def replies_belong_to_their_requests(subject: Subject) -> None:
    """Two clients, slots of different sizes, many rounds: each slot gets the answer to what it asked, once."""
    with served(subject, [[3, 2, 1], [5]]) as (_, _, _, server, (one, two)):
        expect(server.gather(256, 0.0, MOMENT) is None, "without requests, gather times out")
        expect(one.poll(0.0) == [] and one.poll(MOMENT) == [], "without requests, poll gives nothing")
        for turn in range(30):
            slots = [slot for slot in range(3) if (turn >> slot) & 1 or turn % 5 == 0]
            for slot in slots:
                arrays = request((3, 2, 1)[slot], 10 * turn + slot)
                one.submit(slot, arrays)
                for array in arrays:
                    array[...] = 0  # copied at once: the caller may reuse its arrays
            two.submit(0, request(5, 500 + turn))
            serve(server, sum((3, 2, 1)[slot] for slot in slots) + 5, Version(1, turn))
            replies = poll(one, slots)
            for slot in slots:
                expect_answer(replies[slot], (3, 2, 1)[slot], 10 * turn + slot, Version(1, turn))
            expect_answer(poll(two, [0])[0], 5, 500 + turn, Version(1, turn))
            expect(one.poll(0.0) == [] and two.poll(0.0) == [], "a reply comes once")


def requests_are_merged_but_never_split(subject: Subject) -> None:
    """A batch holds what is pending up to max_rows, whole requests only; a larger one comes alone."""
    sizes = [3, 2, 3, 1, 6]
    with served(subject, [sizes, [4]]) as (_, _, _, server, (one, two)):
        for turn in range(5):
            for slot, rows in enumerate(sizes):
                one.submit(slot, request(rows, 10 * turn + slot))
            two.submit(0, request(4, 10 * turn + 7))
            keys: list[int] = []
            while len(keys) < 19:
                batch = server.gather(4, 0.0, LIMIT)
                expect(batch is not None, "requests are gathered")
                assert batch is not None
                check_padding(batch)
                expect(batch.rows <= 4 or batch.rows == 6, f"a batch keeps to max_rows 4, it has {batch.rows}")
                keys += batch.arrays[1][: batch.rows].tolist()
                server.reply(batch, Version(0, 0), answer(batch.arrays))
            asked = [100 * (10 * turn + slot) + row for slot, rows in enumerate(sizes) for row in range(rows)]
            asked += [100 * (10 * turn + 7) + row for row in range(4)]
            expect(sorted(keys) == sorted(asked), "each row is gathered once")
            for slot, reply in poll(one, range(5)).items():
                expect_answer(reply, sizes[slot], 10 * turn + slot)
            expect_answer(poll(two, [0])[0], 4, 10 * turn + 7)


def gathering_waits_for_more(subject: Subject) -> None:
    """With `wait`, requests that come one after another are merged into one batch; a full batch waits for no more."""
    with served(subject, [[3, 2], [2]]) as (_, _, _, server, (one, two)):
        one.submit(0, request(3, 1))
        one.submit(1, request(2, 2))
        two.submit(0, request(2, 3))
        batch = server.gather(7, LIMIT, LIMIT)
        expect(batch is not None and batch.rows == 7, "what comes within `wait` is merged")
        assert batch is not None
        check_padding(batch)
        server.reply(batch, Version(0, 3), answer(batch.arrays))
        replies = poll(one, [0, 1])
        expect_answer(replies[0], 3, 1, Version(0, 3))
        expect_answer(replies[1], 2, 2, Version(0, 3))
        expect_answer(poll(two, [0])[0], 2, 3, Version(0, 3))


def a_superseded_request_is_never_answered(subject: Subject) -> None:
    """A slot that asks again forgets its earlier request, whatever becomes of it."""
    with served(subject, [[2]]) as (_, _, _, server, (client,)):
        client.submit(0, request(2, 1))
        batch = server.gather(256, 0.0, LIMIT)
        assert batch is not None
        client.submit(0, request(2, 2))
        server.reply(batch, Version(0, 1), answer(batch.arrays))
        expect(client.poll(MOMENT) == [], "the answer to a superseded request is not shown")
        served_keys: list[int] = []
        for _ in within("the newer request is gathered"):
            if (batch := server.gather(256, 0.0, 1.0)) is not None:
                served_keys += batch.arrays[1][: batch.rows].tolist()
                server.reply(batch, Version(0, 2), answer(batch.arrays))
            if 200 in served_keys:
                break
        expect_answer(poll(client, [0])[0], 2, 2, Version(0, 2))
        expect(client.poll(MOMENT) == [], "a request is answered once")


def a_reply_given_twice_is_seen_once(subject: Subject) -> None:
    """A server that repeats itself does not give an old action to a new request."""
    with served(subject, [[2]]) as (_, _, _, server, (client,)):
        client.submit(0, request(2, 1))
        batch = server.gather(256, 0.0, LIMIT)
        assert batch is not None
        outputs = answer(batch.arrays)
        server.reply(batch, Version(0, 1), outputs)
        server.reply(batch, Version(0, 1), outputs)
        expect_answer(poll(client, [0])[0], 2, 1, Version(0, 1))
        expect(client.poll(MOMENT) == [], "a reply comes once")
        client.submit(0, request(2, 2))
        server.reply(batch, Version(0, 1), outputs)
        expect(client.poll(MOMENT) == [], "an old action is never a new request's")
        serve(server, 2, Version(0, 2))
        expect_answer(poll(client, [0])[0], 2, 2, Version(0, 2))


def a_request_fails_in_time(subject: Subject) -> None:
    """Without a reply for `limit` seconds it fails, once; a reply that comes later is not shown."""
    with served(subject, [[2, 1]], limit=0.3) as (_, _, _, server, (client,)):
        client.submit(0, request(2, 1))
        client.submit(1, request(1, 2))
        batch = server.gather(3, LIMIT, LIMIT)
        assert batch is not None
        for slot, reply in poll(client, [0, 1]).items():
            expect(reply.arrays is None and reply.slot == slot, "a request that is not answered in time fails")
        expect(client.poll(MOMENT) == [], "it fails once")
        server.reply(batch, Version(0, 0), answer(batch.arrays))
        expect(client.poll(MOMENT) == [], "an answer that comes too late is not shown")


def a_server_comes_back(subject: Subject) -> None:
    """Requests of the old server's time fail at once; the new one sees the clients' next requests, and those only."""
    with served(subject, [[2, 1], [3]]) as (serving, _, ends, server, clients):
        one, two = clients
        for client in clients:
            client.submit(0, request(2 if client is one else 3, 1))
        serve(server, 5)
        expect_answer(poll(one, [0])[0], 2, 1)
        expect_answer(poll(two, [0])[0], 3, 1)
        one.submit(0, request(2, 2))
        one.submit(1, request(1, 3))
        server.close()
        server = serving.inference_server(REQUEST, REPLY)
        ends.callback(server.close)
        for client in clients:
            client.rebind(server.endpoint)
        for reply in poll(one, [0, 1]).values():
            expect(reply.arrays is None, "requests that were out fail when the server has come back")
        one.submit(0, request(2, 4))
        two.submit(0, request(3, 5))
        batches = serve(server, 5, Version(1, 0))
        expect(sum(batch.rows for batch in batches) == 5, "the new server sees only requests of its own time")
        expect_answer(poll(one, [0])[0], 2, 4, Version(1, 0))
        expect_answer(poll(two, [0])[0], 3, 5, Version(1, 0))


def a_client_comes_back(subject: Subject) -> None:
    """A newer incarnation of a client takes the older one's place, and gets no answers to what it did not ask."""
    with served(subject, [[2, 1]]) as (_, connecting, ends, server, (old,)):
        old.submit(0, request(2, 1))
        batch = server.gather(256, 0.0, LIMIT)
        assert batch is not None
        new = connecting.inference_client(server.endpoint, REQUEST, REPLY, SenderId(0, 1), [2, 1], LIMIT)
        ends.callback(new.close)
        server.reply(batch, Version(0, 1), answer(batch.arrays))
        expect(new.poll(MOMENT) == [], "a new incarnation gets no answers of the old one")
        new.submit(1, request(1, 4))
        server.reply(batch, Version(0, 1), answer(batch.arrays))
        expect(new.poll(MOMENT) == [], "a new incarnation gets no answers of the old one")
        serve(server, 1, Version(0, 2))
        expect_answer(poll(new, [1])[1], 1, 4, Version(0, 2))


def a_client_that_went_costs_nothing(subject: Subject) -> None:
    """A reply to somebody who has left is skipped, and the others get theirs."""
    with served(subject, [[2], [3]]) as (_, _, _, server, (gone, stays)):
        gone.submit(0, request(2, 1))
        stays.submit(0, request(3, 2))
        batch = server.gather(5, LIMIT, LIMIT)
        assert batch is not None
        gone.close()
        server.reply(batch, Version(0, 0), answer(batch.arrays))
        expect_answer(poll(stays, [0])[0], 3, 2)
        stays.submit(0, request(3, 3))
        serve(server, 3)
        expect_answer(poll(stays, [0])[0], 3, 3)


INFERENCE = (
    replies_belong_to_their_requests,
    requests_are_merged_but_never_split,
    gathering_waits_for_more,
    a_superseded_request_is_never_answered,
    a_reply_given_twice_is_seen_once,
    a_request_fails_in_time,
    a_server_comes_back,
    a_client_comes_back,
    a_client_that_went_costs_nothing,
)
