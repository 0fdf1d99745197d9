"""The conformance suite finds the promises that a transport breaks: each line bends the transport in memory once."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from podium.core.errors import BrokenPromiseError
from podium.protocol.batches import PaddedArrays
from podium.protocol.memory import MemoryTransport
from podium.protocol.memory.inference import MemoryInferenceClient, MemoryInferenceServer
from podium.protocol.memory.parameters import MemoryParameterPublisher, MemoryParameterReader
from podium.protocol.memory.samples import BufferRing, Meeting, MemorySampleReceiver, MemorySampleSender, QueuedFragment
from podium.protocol.schema import Version
from podium.protocol.streams import Reply
from podium.protocol.testing import inference, parameters, samples, senders
from podium.protocol.testing.subject import Subject

take, release = MemorySampleReceiver._take, MemorySampleReceiver._release
merge, replies, look = MemoryInferenceServer._merge, MemoryInferenceClient._replies, MemoryParameterReader._look


def newest_first(self: MemorySampleReceiver) -> Any:
    for ring in self._meeting.rings.values():
        ring.queue.rotate(1)
    return take(self)


def credit_at_once(self: MemorySampleReceiver) -> Any:
    if (received := take(self)) is not None:
        received.release()
    return received


def kept_in_the_queue(self: MemorySampleReceiver) -> Any:
    if (received := take(self)) is not None:
        ring = self._meeting.rings[received.sender]
        ring.queue.append(next(reversed(ring.held.values())))
    return received


def never_released(self: MemorySampleReceiver, ring: BufferRing, entry: QueuedFragment) -> None:
    return None


def first_come_only(self: MemorySampleReceiver) -> Any:
    received = take(self)
    self._meeting.rings = dict(sorted(self._meeting.rings.items()))
    return received


def without_checks(self: Meeting, ring: BufferRing) -> None:
    self.rings[ring.sender] = ring


def forgotten(self: Meeting, ring: BufferRing) -> None:
    self.rings.pop(ring.sender, None)


def not_copied(self: MemoryParameterPublisher, version: Version, arrays: Sequence[np.ndarray]) -> None:
    self._policy.latest = version, list(arrays)


def in_halves(self: MemoryParameterReader) -> Any:
    if (news := look(self)) is None:
        return None
    half = np.array(news[1][0])
    half[:32] -= 1
    return news[0], [half, *news[1][1:]]


def again_and_again(self: MemoryParameterReader) -> Any:
    return self._policy.latest


def any_answer(self: MemoryInferenceClient) -> list[Reply] | None:
    slots = [slot for slot in self._deadlines if self._slots[slot].answered > 0]
    return [Reply(slot, self._slots[slot].version, self._slots[slot].reply) for slot in slots] or None


def answers_again(self: MemoryInferenceClient) -> list[Reply] | None:
    out = dict(self._deadlines)
    found = replies(self)
    self._deadlines = out
    return found


def larger_than_allowed(self: MemoryInferenceServer, slots: list, max_rows: int) -> Any:
    return merge(self, slots, 2 * max_rows)


def not_padded(self: PaddedArrays, rows: int) -> list[np.ndarray]:
    return [array[:rows] for array in self.arrays]


def to_the_end(self: MemoryInferenceClient, timeout: float) -> list[Reply]:
    return []


@pytest.mark.parametrize(
    ("owner", "name", "bent", "promise", "broken"),
    [
        (MemorySampleReceiver, "_take", newest_first, samples.order_of_commits_is_kept, "the order of commits"),
        (MemorySampleReceiver, "_take", credit_at_once, samples.credits_bound_a_sender, "gets no buffer"),
        (MemorySampleReceiver, "_take", kept_in_the_queue, samples.each_fragment_arrives_once, "its sender's"),
        (MemorySampleReceiver, "_take", kept_in_the_queue, samples.credits_bound_a_sender, "comes once"),
        (MemorySampleReceiver, "_take", first_come_only, samples.nobody_starves, "no sender starves"),
        (Meeting, "join", without_checks, senders.another_schema_is_refused, "nothing of a refused sender"),
        (Meeting, "join", without_checks, senders.an_older_incarnation_is_refused, "nothing of a refused sender"),
        (Meeting, "leave", forgotten, senders.senders_come_and_go, "is received"),
        (MemorySampleReceiver, "_release", never_released, samples.releases_come_in_any_order, "gets a buffer"),
        (MemorySampleSender, "acquire", lambda *_: None, samples.fragments_arrive_exactly, "gets a buffer"),
        (MemoryParameterPublisher, "publish", not_copied, parameters.versions_read_stay_as_they_are, "publish copies"),
        (MemoryParameterReader, "_look", in_halves, parameters.no_version_is_seen_in_half, "half of a version"),
        (MemoryParameterReader, "_look", again_and_again, parameters.the_latest_version_wins, "is read once"),
        (MemoryParameterReader, "_look", again_and_again, parameters.versions_grow_over_incarnations, "nothing new"),
        (
            MemoryInferenceClient,
            "_replies",
            any_answer,
            inference.a_superseded_request_is_never_answered,
            "answered once",
        ),
        (MemoryInferenceClient, "_replies", answers_again, inference.a_reply_given_twice_is_seen_once, "comes once"),
        (
            MemoryInferenceServer,
            "_merge",
            larger_than_allowed,
            inference.requests_are_merged_but_never_split,
            "max_rows",
        ),
        (PaddedArrays, "filled", not_padded, inference.replies_belong_to_their_requests, "padded to"),
        (MemoryInferenceClient, "poll", to_the_end, inference.a_request_fails_in_time, "reply or failure comes"),
    ],
)
def test_a_broken_promise_is_named(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    bent: Callable[..., Any],
    promise: Callable[[Subject], None],
    broken: str,
) -> None:
    monkeypatch.setattr(owner, name, bent)
    monkeypatch.setattr("podium.protocol.testing.subject.LIMIT", 0.5)
    transport = MemoryTransport()
    with pytest.raises(BrokenPromiseError, match=broken):
        promise(Subject(lambda: (transport, transport)))
