"""The promises of a sample stream about who takes part: senders and receivers come, go, are refused, and come back."""

import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from podium.core.errors import RefusedError
from podium.protocol.schema import Field, Schema, SenderId
from podium.protocol.streams import Received, SampleReceiver, SampleSender
from podium.protocol.testing.samples import SMALL, acquire, fill, header, receive, same, send
from podium.protocol.testing.subject import MOMENT, Subject, expect, opened, within


def expect_refused(start: Callable[[], SampleSender], receiver: SampleReceiver) -> str:
    """The message with which a sender is refused: as it is made, or at an acquire soon after."""
    sender = None
    try:
        sender = start()
        for _ in within("a sender that must be refused gets RefusedError"):
            if (buffer := sender.acquire(MOMENT)) is not None:
                sender.commit(buffer, header(99))
            received = receiver.receive(MOMENT)
            expect(received is None or received.header.sequence != 99, "nothing of a refused sender is received")
    except RefusedError as error:
        return str(error)
    finally:
        if sender is not None:
            sender.close()
    raise AssertionError


def senders_come_and_go(subject: Subject) -> None:
    """A closed sender's commits are still received; others join at any time; `senders` counts what waits."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        for incarnation in range(4):
            sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(incarnation % 2, incarnation), 2)
            send(sender, receiver, 0, seed=10 * incarnation)
            send(sender, receiver, 1, seed=10 * incarnation)
            for _ in within("senders() counts the fragments that wait"):
                if receiver.senders().get(SenderId(incarnation % 2, incarnation)) == 2:
                    break
            sender.close()
            sender.close()
            for sequence in range(2):
                received = receive(receiver)
                expect(
                    received.sender == SenderId(incarnation % 2, incarnation), "a closed sender's commits are received"
                )
                expect(same(SMALL, received.arrays, 10 * incarnation + sequence), "and are whole")
                received.release()


def an_older_incarnation_is_refused(subject: Subject) -> None:
    """A newer incarnation of a worker replaces the older one, whose commits are still received; never the reverse."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        old = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(1, 4), 3)
        send(old, receiver, 0)
        for _ in within("senders() counts the fragments that wait"):
            if receiver.senders().get(SenderId(1, 4)) == 1:
                break
        new = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(1, 5), 3)
        ends.callback(new.close)
        send(new, receiver, 0, seed=20)
        held = [receive(receiver) for _ in range(2)]
        by_sender = {received.sender: received for received in held}
        expect(set(by_sender) == {SenderId(1, 4), SenderId(1, 5)}, "commits of both incarnations are received")
        expect(same(SMALL, by_sender[SenderId(1, 4)].arrays, 0), "those of the older incarnation are whole")
        expect(same(SMALL, by_sender[SenderId(1, 5)].arrays, 20), "those of the newer incarnation are whole")
        for received in held:
            received.release()
        expect_refused(lambda: old, receiver)
        older = partial(connecting.sample_sender, receiver.endpoint, SMALL, SenderId(1, 3), 2)
        expect_refused(older, receiver)
        expect(receiver.counters.refused >= 1, "the refused are counted")
        send(new, receiver, 1, seed=20)
        received = receive(receiver)
        expect(received.sender == SenderId(1, 5), "the newest incarnation goes on")
        received.release()


def another_schema_is_refused(subject: Subject) -> None:
    """The message says in what the two differ."""
    other = Schema((SMALL.fields[0], Field("reward", (4,), "float64")))
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        make = partial(connecting.sample_sender, receiver.endpoint, other, SenderId(0, 0), 2)
        message = expect_refused(make, receiver)
        expect("reward float64[3]" in message and "reward float64[4]" in message, f"the message names both: {message}")
        expect("\n" not in message, "the message is one line")
        sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 1), 2)
        ends.callback(sender.close)
        send(sender, receiver, 0)
        receive(receiver).release()


def a_receiver_comes_back(subject: Subject) -> None:
    """A new receiver finds what was not released, or it is lost; nothing comes under another name, and it goes on."""
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(2, 1), 4)
        ends.callback(sender.close)
        for sequence in range(4):
            send(sender, receiver, sequence)
        held = [receive(receiver) for _ in range(3)]
        held[1].release()
        receiver.close()
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        sender.rebind(receiver.endpoint)
        sequence, found = 4, []
        for _ in within("a sender goes on with a receiver that came back"):
            if sequence < 20 and (buffer := sender.acquire(0.0)) is not None:
                fill(buffer, SMALL, sequence)
                sender.commit(buffer, header(sequence))
                sequence += 1
            if (received := receiver.receive(MOMENT)) is not None:
                expect(received.sender == SenderId(2, 1), "fragments keep their sender")
                expect(same(SMALL, received.arrays, received.header.sequence), "and their numbers")
                found.append(received.header.sequence)
                received.release()
            elif sequence == 20:
                break
        expect(found == sorted(set(found)), f"order is kept and nothing repeated: {found}")
        expect(found[-16:] == list(range(4, 20)), f"all that was committed since arrives: {found}")
        before = found[:-16]
        if subject.keeps_unreleased:
            expect(before == [0, 2, 3], f"what was not released comes again, what was does not: {before}")
        else:
            expect(1 not in before, f"what was released does not come again: {before}")
        buffers = [acquire(sender, receiver) for _ in range(4)]
        expect(len(buffers) == 4, "no credit is lost with a receiver")


def one_receives_while_another_looks(subject: Subject) -> None:
    """While one thread receives, another asks for the senders and releases; senders come and go: each fragment once."""
    incarnations, each = 100, 48
    with opened(subject) as (serving, connecting, ends):
        receiver = serving.sample_receiver(SMALL)
        ends.callback(receiver.close)
        inbox: deque[Received] = deque()
        came: list[tuple[SenderId, int]] = []
        errors: list[BaseException] = []
        over = threading.Event()

        def receive_all() -> None:
            if (received := receiver.receive(0.01)) is not None:
                came.append((received.sender, received.header.sequence))
                inbox.append(received)

        def look_and_release() -> None:
            receiver.senders()
            if inbox:
                inbox.popleft().release()

        def repeat(what: Callable[[], None]) -> None:
            try:
                while not over.is_set():
                    what()
            except BaseException as error:  # noqa: BLE001 - raised by the thread that checks
                errors.append(error)

        threads = [threading.Thread(target=repeat, args=(what,)) for what in (receive_all, look_and_release)]
        switch_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # threads meet in the middle of things
        try:
            for thread in threads:
                thread.start()
            names = [SenderId(incarnation % 3, incarnation // 3) for incarnation in range(incarnations)]
            for name in names:
                sender = connecting.sample_sender(receiver.endpoint, SMALL, name, 48)
                sequence = 0
                for _ in within("a sender with credit gets a buffer"):
                    if (buffer := sender.acquire(MOMENT)) is not None:
                        sender.commit(buffer, header(sequence))
                        sequence += 1
                    if errors or sequence == each:
                        break
                sender.close()
            for _ in within("all is received and released, and those that left are forgotten"):
                if errors or (len(came) >= incarnations * each and not inbox and not receiver.senders()):
                    break
        finally:
            over.set()
            for thread in threads:
                thread.join()
            sys.setswitchinterval(switch_s)
        expect(not errors, f"a thread may look while another receives: {errors}")
        for name in names:
            sequences = [sequence for sender, sequence in came if sender == name]
            expect(sequences == list(range(each)), f"each fragment comes once, in order: {name} {sequences}")


SENDERS = (
    senders_come_and_go,
    an_older_incarnation_is_refused,
    another_schema_is_refused,
    a_receiver_comes_back,
    one_receives_while_another_looks,
)
