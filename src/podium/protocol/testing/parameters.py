"""The promises of a parameter stream: the latest wins, and nobody sees half of a version."""

import threading
from collections.abc import Sequence

import numpy as np

from podium.core.errors import RefusedError
from podium.protocol.schema import Field, Schema, Version
from podium.protocol.streams import ParameterReader
from podium.protocol.testing.subject import MOMENT, Subject, expect, opened, within

WEIGHTS = Schema((Field("w", (64, 33), "float32"), Field("b", (7,), "float64"), Field("none", (0,), "int32")))


def constant(value: float) -> list[np.ndarray]:
    """Weights that are all one number."""
    return [np.full(field.shape, value, field.dtype) for field in WEIGHTS.fields]


def value_of(arrays: Sequence[np.ndarray]) -> float:
    """The one number that all elements must be."""
    value = float(arrays[0].flat[0])
    for field, array in zip(WEIGHTS.fields, arrays, strict=True):
        expect(array.shape == field.shape and array.dtype == np.dtype(field.dtype), "weights have their schema")
        expect(bool((array == value).all()), "a reader never sees half of a version")
    return value


def read(reader: ParameterReader, until: Version) -> list[tuple[Version, float]]:
    """All that is read up to a version, which must come."""
    seen: list[tuple[Version, float]] = []
    for _ in within(f"version {tuple(until)} is read"):
        if (news := reader.read(1.0)) is not None:
            expect(isinstance(news[0], Version), "a version is a Version")
            expect(not seen or news[0] > seen[-1][0], "versions grow")
            seen.append((news[0], value_of(news[1])))
            if news[0] >= until:
                return seen
    raise AssertionError


def the_latest_version_wins(subject: Subject) -> None:
    """A reader gets the newest, once; one that comes late gets it at once; unchanged gives None."""
    with opened(subject) as (serving, connecting, ends):
        publisher = serving.parameter_publisher("main", WEIGHTS)
        ends.callback(publisher.close)
        reader = connecting.parameter_reader(publisher.endpoint, WEIGHTS)
        ends.callback(reader.close)
        expect(reader.read() is None, "there is nothing to read before the first version")
        expect(reader.read(MOMENT) is None, "and waiting for it has a limit")
        for update in range(10):
            publisher.publish(Version(0, update), constant(update))
        expect(read(reader, Version(0, 9))[-1] == (Version(0, 9), 9.0), "the latest version is read")
        expect(reader.read() is None, "a version is read once")
        expect(reader.read(MOMENT) is None, "a version is read once")
        late = connecting.parameter_reader(publisher.endpoint, WEIGHTS)
        ends.callback(late.close)
        expect(read(late, Version(0, 9)) == [(Version(0, 9), 9.0)], "whoever comes late gets the latest, and it alone")


def versions_read_stay_as_they_are(subject: Subject) -> None:
    """Arrays are the reader's own until it reads the next version; the publisher's are its own after publish."""
    with opened(subject) as (serving, connecting, ends):
        publisher = serving.parameter_publisher("main", WEIGHTS)
        ends.callback(publisher.close)
        reader = connecting.parameter_reader(publisher.endpoint, WEIGHTS)
        ends.callback(reader.close)
        mine = constant(1)
        publisher.publish(Version(0, 1), mine)
        for array in mine:
            array[...] = 77
        arrays = None
        for _ in within("the first version is read"):
            if (news := reader.read(1.0)) is not None:
                arrays = news[1]
                break
        assert arrays is not None
        expect(value_of(arrays) == 1.0, "publish copies")
        for update in range(2, 12):
            publisher.publish(Version(0, update), constant(update))
            expect(value_of(arrays) == 1.0, "arrays stay as they are until the next read")


def versions_grow_over_incarnations(subject: Subject) -> None:
    """A restored learner's first version is newer than its predecessor's last; an older learner's is never read."""
    with opened(subject) as (serving, connecting, ends):
        publisher = serving.parameter_publisher("main", WEIGHTS)
        reader = connecting.parameter_reader(publisher.endpoint, WEIGHTS)
        ends.callback(reader.close)
        publisher.publish(Version(3, 100), constant(5))
        read(reader, Version(3, 100))
        publisher.close()
        expect(reader.read(MOMENT) is None, "a publisher that has gone leaves nothing new")

        stale = serving.parameter_publisher("main", WEIGHTS)
        stale.publish(Version(3, 90), constant(6))
        reader.rebind(stale.endpoint)
        expect(reader.read(MOMENT) is None, "versions never go back")
        stale.publish(Version(3, 101), constant(7))
        expect(read(reader, Version(3, 101))[-1][1] == 7.0, "they go on once they are newer")
        stale.close()

        restored = serving.parameter_publisher("main", WEIGHTS)
        ends.callback(restored.close)
        restored.publish(Version(4, 0), constant(8))
        reader.rebind(restored.endpoint)
        expect(read(reader, Version(4, 0)) == [(Version(4, 0), 8.0)], "a newer incarnation's first version is newer")


def policies_are_apart(subject: Subject) -> None:
    """Two policies of one transport, each with its own schema and versions."""
    small = Schema((Field("w", (2,), "float32"),))
    with opened(subject) as (serving, connecting, ends):
        main = serving.parameter_publisher("main", WEIGHTS)
        rival = serving.parameter_publisher("rival/2 ä", small)
        ends.callback(main.close)
        ends.callback(rival.close)
        main_reader = connecting.parameter_reader(main.endpoint, WEIGHTS)
        rival_reader = connecting.parameter_reader(rival.endpoint, small)
        ends.callback(main_reader.close)
        ends.callback(rival_reader.close)
        main.publish(Version(0, 1), constant(1))
        read(main_reader, Version(0, 1))
        expect(rival_reader.read(MOMENT) is None, "a policy's version is not another's")
        rival.publish(Version(0, 7), [np.full(2, 9, np.float32)])
        for _ in within("the other policy is read"):
            if (news := rival_reader.read(1.0)) is not None:
                expect(news[0] == Version(0, 7) and news[1][0].tolist() == [9, 9], "a policy has its own numbers")
                break


def parameters_of_another_schema_are_refused(subject: Subject) -> None:
    """RefusedError, as the reader is made or when it reads, names the array that differs."""
    other = Schema((Field("w", (64, 34), "float32"), *WEIGHTS.fields[1:]))
    with opened(subject) as (serving, connecting, ends):
        publisher = serving.parameter_publisher("main", WEIGHTS)
        ends.callback(publisher.close)
        publisher.publish(Version(0, 0), constant(0))
        try:
            reader = connecting.parameter_reader(publisher.endpoint, other)
            ends.callback(reader.close)
            for _ in within("a reader with another schema gets RefusedError"):
                expect(reader.read(MOMENT) is None, "nothing is read with another schema")
        except RefusedError as error:
            expect("w float32[64, 33]" in str(error), f"the message names what differs: {error}")


def no_version_is_seen_in_half(subject: Subject) -> None:
    """A publisher that writes as fast as it can, and readers beside it: every version read is whole."""
    with opened(subject) as (serving, connecting, ends):
        publisher = serving.parameter_publisher("main", WEIGHTS)
        ends.callback(publisher.close)
        readers = [connecting.parameter_reader(publisher.endpoint, WEIGHTS) for _ in range(2)]
        stop, last = threading.Event(), [0]

        def hammer() -> None:
            while not stop.is_set():
                last[0] += 1
                publisher.publish(Version(0, last[0]), constant(last[0]))

        thread = threading.Thread(target=hammer)
        thread.start()
        try:
            newest = [Version(-1, 0)] * 2
            seen = 0
            for _ in within("readers are not starved by a busy publisher"):
                for i, reader in enumerate(readers):
                    if (news := reader.read(MOMENT)) is not None:
                        expect(value_of(news[1]) == news[0].update, "a version's numbers are its own")
                        expect(news[0] > newest[i], "versions grow")
                        newest[i] = news[0]
                        seen += 1
                if seen >= 200:
                    break
        finally:
            stop.set()
            thread.join()
        for reader in readers:
            ends.callback(reader.close)
            if newest[readers.index(reader)] < Version(0, last[0]):
                read(reader, Version(0, last[0]))


PARAMETERS = (
    the_latest_version_wins,
    versions_read_stay_as_they_are,
    versions_grow_over_incarnations,
    policies_are_apart,
    parameters_of_another_schema_are_refused,
    no_version_is_seen_in_half,
)
