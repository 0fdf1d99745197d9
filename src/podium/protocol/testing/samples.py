"""The promises of a sample stream about fragments: bounded, each once, in its sender's order."""

from collections.abc import Sequence

import numpy as np

from podium.core.errors import BrokenPromiseError
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import Buffer, FragmentHeader, Received, SampleReceiver, SampleSender
from podium.protocol.testing.subject import MOMENT, Subject, expect, opened, within

SMALL = Schema((Field("obs", (3, 2), "float32"), Field("reward", (3,), "float64")))
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
DTYPES += ("float16", "float32", "float64", "complex64")
SHAPES = ((), (0,), (1,), (5,), (2, 0, 3), (3, 7))
ALL_KINDS = Schema(
    (
        *(Field(f"{dtype}{i}", shape, dtype) for dtype in DTYPES for i, shape in enumerate(SHAPES)),
        Field("frames", (3, 4, 4, 4), "uint8", stack=4),
    )
)


def numbers(schema: Schema, seed: int) -> list[np.ndarray]:
    """Arrays of a schema filled from a seed. Frames are stacked as an environment stacks them."""
    random = np.random.default_rng(seed)
    arrays = []
    for field in schema.fields:
        array = random.integers(0, 2 if field.dtype == "bool" else 100, field.shape).astype(field.dtype)
        if field.stack > 1:
            for step in range(1, field.shape[0]):
                array[step, ..., :-1] = array[step - 1, ..., 1:]
        arrays.append(array)
    return arrays


def header(sequence: int) -> FragmentHeader:
    """Of a fragment with numbers that all follow from its sequence."""
    return FragmentHeader(sequence % 3, sequence, Version(1, sequence // 2), 7, 7 * (sequence + 1))


def fill(buffer: Buffer, schema: Schema, seed: int) -> None:
    """Write the numbers of a seed into a buffer."""
    for array, content in zip(buffer.arrays, numbers(schema, seed), strict=True):
        array[...] = content


def same(schema: Schema, arrays: Sequence[np.ndarray], seed: int) -> bool:
    """Whether arrays hold the numbers of a seed, in shape and dtype."""
    return all(
        mine.shape == array.shape and mine.dtype == array.dtype and np.array_equal(mine, array)
        for mine, array in zip(numbers(schema, seed), arrays, strict=True)
    )


def acquire(sender: SampleSender, receiver: SampleReceiver, inbox: list[Received] | None = None) -> Buffer:
    """A buffer, working the receiver meanwhile; what it receives goes into `inbox`, or nothing must come."""
    for _ in within("a sender with credit gets a buffer"):
        if (buffer := sender.acquire(MOMENT)) is not None:
            return buffer
        if (received := receiver.receive(0.0)) is not None:
            expect(inbox is not None, "nothing comes that was not committed")
            assert inbox is not None
            inbox.append(received)
    raise AssertionError


def send(sender: SampleSender, receiver: SampleReceiver, sequence: int, schema: Schema = SMALL, seed: int = 0) -> None:
    """Commit the fragment of a sequence number."""
    buffer = acquire(sender, receiver)
    fill(buffer, schema, seed + sequence)
    sender.commit(buffer, header(sequence))


def receive(receiver: SampleReceiver) -> Received:
    """The next fragment, which must come."""
    for _ in within("a committed fragment is received"):
        if (received := receiver.receive(1.0)) is not None:
            return received
    raise AssertionError


def fragments_arrive_exactly(subject: Subject) -> None:
    """Every dtype, empty arrays and scalars arrive bit for bit; so does each field of the header."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(ALL_KINDS)
        ends.callback(receiver.close)
        sender = connecting.sample_sender(receiver.endpoint, ALL_KINDS, SenderId(3, 5), 2)
        ends.callback(sender.close)
        big = FragmentHeader(2**20, 2**40, Version(2**31, 2**45), 2**33, 2**50)
        for seed in range(5):
            buffer = acquire(sender, receiver)
            fill(buffer, ALL_KINDS, seed)
            sender.commit(buffer, big._replace(sequence=big.sequence + seed))
            received = receive(receiver)
            expect(received.sender == SenderId(3, 5), "the sender is named")
            expect(received.header == big._replace(sequence=big.sequence + seed), "the header arrives as it was sent")
            expect(isinstance(received.header.version, Version), "the header's version is a Version")
            expect(same(ALL_KINDS, received.arrays, seed), "arrays arrive exactly, in shape, dtype and numbers")
            received.release()
        expect(sender.counters.sent == receiver.counters.received == 5, "both ends count")


def credits_bound_a_sender(subject: Subject) -> None:
    """With `credits` fragments out, acquire times out: committing or receiving frees nothing, releasing does."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 3)
        ends.callback(sender.close)
        expect(receiver.receive(MOMENT) is None, "without fragments, receive times out")
        buffers = [acquire(sender, receiver) for _ in range(3)]
        expect(len({buffer.index for buffer in buffers}) == 3, "buffers that are out at once are different")
        full = "a sender without credit gets no buffer"
        expect(sender.acquire(MOMENT) is None, full + ": all are out")
        for sequence, buffer in enumerate(buffers):
            fill(buffer, SMALL, sequence)
            sender.commit(buffer, header(sequence))
        expect(sender.acquire(MOMENT) is None, full + ": all are committed")
        held = [receive(receiver) for _ in range(3)]
        expect(receiver.receive(MOMENT) is None, "a fragment comes once")
        expect(sender.acquire(MOMENT) is None, full + ": all are received, none released")
        held[0].release()
        acquire(sender, receiver)
        expect(sender.acquire(MOMENT) is None, "one release gives one credit")


def order_of_commits_is_kept(subject: Subject) -> None:
    """Buffers may be committed in another order than acquired: they arrive in the order of commits."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 4)
        ends.callback(sender.close)
        sequence = 0
        for order in ((3, 0, 2, 1), (1, 3, 2, 0), (0, 1, 2, 3)):
            buffers = [acquire(sender, receiver) for _ in order]
            for place in order:
                fill(buffers[place], SMALL, sequence)
                sender.commit(buffers[place], header(sequence))
                sequence += 1
            for expected in range(sequence - 4, sequence):
                received = receive(receiver)
                expect(received.header.sequence == expected, "fragments of a sender come in the order of commits")
                expect(same(SMALL, received.arrays, expected), "a fragment's arrays are those of its header")
                received.release()


def releases_come_in_any_order(subject: Subject) -> None:
    """What is held stays untouched while the sender fills whatever was released."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 4)
        ends.callback(sender.close)
        held: dict[int, Received] = {}
        sequence, random = 0, np.random.default_rng(0)
        for _ in range(60):
            while len(held) < 4:
                send(sender, receiver, sequence)
                received = receive(receiver)
                expect(received.header.sequence == sequence, "order is kept though releases come in any order")
                held[sequence] = received
                sequence += 1
            expect(sender.acquire(0.0) is None, "credits bound the sender")
            for number in random.permutation(list(held))[: random.integers(1, 5)]:
                held.pop(int(number)).release()
            for number, received in held.items():
                expect(same(SMALL, received.arrays, number), "a fragment is untouched until it is released")


def each_fragment_arrives_once(subject: Subject) -> None:
    """Three senders with few credits, many fragments: each arrives, once, in its sender's order."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        names = [SenderId(worker, 0) for worker in range(3)]
        senders = [connecting.sample_sender(receiver.endpoint, SMALL, name, 1 + name.worker) for name in names]
        seen: dict[SenderId, list[int]] = {name: [] for name in names}
        sent = [0] * 3
        for sender in senders:
            ends.callback(sender.close)
        for _ in within("all fragments arrive"):
            for worker, sender in enumerate(senders):
                while sent[worker] < 150 and (buffer := sender.acquire(0.0)) is not None:
                    fill(buffer, SMALL, 1000 * worker + sent[worker])
                    sender.commit(buffer, header(sent[worker]))
                    sent[worker] += 1
            if (received := receiver.receive(MOMENT)) is not None:
                name = received.sender
                seen[name].append(received.header.sequence)
                seed = 1000 * name.worker + received.header.sequence
                expect(same(SMALL, received.arrays, seed), "a fragment is its sender's")
                received.release()
            elif sum(sent) == 450:
                break
        for name in names:
            expect(seen[name] == list(range(150)), f"each fragment arrives once, in order ({name})")


def nobody_starves(subject: Subject) -> None:
    """A sender that is always full does not keep the receiver from another."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        greedy = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 8)
        modest = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(1, 0), 1)
        ends.callback(greedy.close)
        ends.callback(modest.close)
        sequence, others = 0, 0
        for turn in range(20_000):
            while (buffer := greedy.acquire(0.0)) is not None:
                greedy.commit(buffer, header(sequence))
                sequence += 1
            if turn > 10 and (buffer := modest.acquire(0.0)) is not None:
                modest.commit(buffer, header(others))
            if (received := receiver.receive(MOMENT)) is None:
                continue  # credits may still be on their way back
            others += received.sender.worker == 1
            received.release()
            if others == 3:
                return
        raise BrokenPromiseError("broken promise: no sender starves beside a full one")


SAMPLES = (
    fragments_arrive_exactly,
    credits_bound_a_sender,
    order_of_commits_is_kept,
    releases_come_in_any_order,
    each_fragment_arrives_once,
    nobody_starves,
)
