"""The ring: an actor steps one slot while the actions of others are chosen, and neither waits for the other."""

import threading
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from podium.envs.interface import HostEnv, TimeStep
from podium.protocol.run_keys import RunKeys
from podium.protocol.schema import Version
from podium.protocol.tcp.transport import TcpTransport
from podium.workers.action_sources import ActionSource, Choice, InlineActions
from podium.workers.layout import ActRequest
from podium.workers.schedule import make_schedule
from workers.compiling import compilations
from workers.stage import Stage


class Watched(HostEnv):
    """Writes down when it is sent actions and when it is received from."""

    def __init__(self, slot: int, env: HostEnv, log: list[tuple[str, int]]) -> None:
        self.slot, self.env, self.log = slot, env, log
        self.spec, self.num_envs = env.spec, env.num_envs

    def reset(self) -> TimeStep:
        return self.env.reset()

    def send(self, actions: np.ndarray) -> None:
        self.log.append(("send", self.slot))
        self.env.send(actions)

    def recv(self) -> TimeStep:
        self.log.append(("recv", self.slot))
        return self.env.recv()

    def close(self) -> None:
        self.env.close()


class Around(ActionSource):
    """A policy that passes everything on."""

    def __init__(self, inner: ActionSource) -> None:
        self.inner = inner

    @property
    def version(self) -> Version | None:
        return self.inner.version

    def submit(self, slot: int, request: ActRequest) -> None:
        self.inner.submit(slot, request)

    def poll(self, timeout: float) -> Iterator[Choice]:
        yield from self.inner.poll(timeout)

    def refresh(self, timeout: float) -> None:
        self.inner.refresh(timeout)

    def warm_up(self, request: ActRequest, slots: int) -> None:
        self.inner.warm_up(request, slots)

    def metrics(self) -> dict[str, float]:
        return self.inner.metrics()


class Late(Around):
    """Has no answer for slot 1 until it is late."""

    def __init__(self, inner: ActionSource, late: threading.Event) -> None:
        super().__init__(inner)
        self.late = late
        self.kept: tuple[int, ActRequest] | None = None

    def submit(self, slot: int, request: ActRequest) -> None:
        if slot == 0 or self.late.is_set():
            super().submit(slot, request)
        else:
            self.kept = slot, request

    def poll(self, timeout: float) -> Iterator[Choice]:
        if self.late.wait(timeout) and self.kept is not None:
            self.inner.submit(*self.kept)
            self.kept = None
        yield from super().poll(0.0)


class Distant(Around):
    """Answers a request when 5 ms have passed, on a clock of its own: a step takes 1 ms, and so does waiting."""

    LATENCY = 5

    def __init__(self, inner: ActionSource, log: list[tuple[str, int]]) -> None:
        super().__init__(inner)
        self.log = log
        self.waited = 0
        self.waited_beside_a_step = 0
        self.due: dict[int, int] = {}

    @property
    def clock(self) -> int:
        return self.waited + sum(what == "recv" for what, _ in self.log)

    def submit(self, slot: int, request: ActRequest) -> None:
        self.due[slot] = self.clock + self.LATENCY
        super().submit(slot, request)

    def poll(self, timeout: float) -> Iterator[Choice]:
        if timeout > 0 and self.due:
            self.waited_beside_a_step += sum(w == "send" for w, _ in self.log) > sum(w == "recv" for w, _ in self.log)
            self.waited += max(0, min(self.due.values()) - self.clock)
        # Requests that are not due go back: the inner policy would answer all at once.
        pending = self.inner._pending
        self.inner._pending = [asked for asked in pending if self.due[asked[0]] <= self.clock]
        later = [asked for asked in pending if self.due[asked[0]] > self.clock]
        choices = list(self.inner.poll(timeout))
        self.inner._pending += later
        for choice in choices:
            del self.due[choice.slot]
        yield from choices


def run_with_latency(slots: int) -> tuple[float, Distant]:
    """Steps of environments in each millisecond of the clock, with this many slots."""
    log: list[tuple[str, int]] = []
    distant: list[Distant] = []

    def wrap_policy(inner: ActionSource) -> ActionSource:
        distant.append(Distant(inner, log))
        return distant[0]

    stage = Stage(slots, wrap=lambda slot, env: Watched(slot, env, log), wrap_policy=wrap_policy, num_envs=slots)
    stage.publish(0)
    with stage:
        stage.receive_released(4 * slots)
    return sum(what == "recv" for what, _ in log) / distant[0].clock, distant[0]


def test_the_simulator_never_waits_once_the_latency_is_covered_by_other_slots():
    alone, _ = run_with_latency(1)
    ring, distant = run_with_latency(8)
    # One slot: a step, five of waiting. Eight: by the time that seven others were stepped, the answer is there.
    assert alone == pytest.approx(1 / 6, rel=0.1)
    assert ring > 4 * alone
    assert ring > 0.9
    assert distant.waited_beside_a_step == 0


def test_a_slot_is_stepped_while_the_others_actions_are_chosen():
    log: list[tuple[str, int]] = []

    class Logged(Around):
        def poll(self, timeout):
            for choice in self.inner.poll(timeout):
                log.append(("act", choice.slot))
                yield choice

    stage = Stage(2, wrap=lambda slot, env: Watched(slot, env, log), wrap_policy=Logged)
    stage.publish(0)
    with stage:
        stage.receive_released(4)
    steady = log[8:20]
    turn = [("recv", 0), ("act", 0), ("send", 0), ("recv", 1), ("act", 1), ("send", 1)]
    start = turn.index(steady[0])
    assert steady == [turn[(start + i) % 6] for i in range(12)]


def test_a_slot_is_never_more_than_a_fragment_ahead_of_another():
    late = threading.Event()

    with Stage(2, wrap_policy=lambda inner: Late(inner, late)) as stage:
        stage.publish(0)
        assert [sent.header.slot for sent in stage.receive_released(2)] == [0, 0]
        stage.wait_until_it_waits()
        assert stage.actor_account.fragments == 2
        late.set()
        assert {sent.header.slot for sent in stage.receive_released(4)} == {0, 1}


def test_at_staleness_0_a_slot_that_is_done_does_not_change_the_version_under_another():
    late = threading.Event()
    with Stage(2, staleness=0, wrap_policy=lambda inner: Late(inner, late)) as stage:
        stage.publish(0)
        first = stage.receive()
        stage.publish(2, incarnation=1, seed=5)
        stage.wait_until_it_waits()
        late.set()
        sent = [first, stage.receive()]
        for one in sent:
            one.release()
        sent += stage.receive_released(2)
    assert [s.header.slot for s in sent[:2]] == [0, 1]
    assert [s.header.version for s in sent] == [Version(0, 0), Version(0, 0), Version(1, 2), Version(1, 2)]
    for one in sent:
        assert (one.record.fragment.version == one.header.version.update).all()


@pytest.mark.parametrize(("staleness", "rows"), [(1, 4), (0, 1)])
def test_synchronous_environments_act_as_one_batch_but_slot_by_slot_at_staleness_0(staleness, rows):
    with Stage(4, staleness=staleness) as stage:
        stage.publish(0)
        for _ in range(4):
            stage.receive()
        metrics = stage.actor.metrics()
    assert metrics["rows_per_act"] == pytest.approx(rows, rel=0.3)


def requests(stage: Stage, count: int) -> list[ActRequest]:
    """Of slots that see and remember different things."""
    random = np.random.default_rng(0)
    return [
        jax.tree.map(
            lambda field: (
                random.integers(0, 2**31, (stage.rows, *field.shape)).astype(field.dtype)
                if field.dtype == "uint32"
                else random.random((stage.rows, *field.shape)).astype(field.dtype)
            ),
            stage.layouts.request.tree(stage.layouts.request.schema.fields),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_batch_over_slots_chooses_what_each_slot_would_have_got_alone(count):
    stage = Stage(4, "podium:Target-v0", memory="gru")
    stage.publish(3)
    asked = requests(stage, count)
    together = InlineActions(stage.algorithm, stage.layouts, stage.reader(), make_schedule(1))
    alone = InlineActions(stage.algorithm, stage.layouts, stage.reader(), make_schedule(0))
    for _ in range(2):  # twice: what was chosen first must outlive the batch's arrays
        for policy in (together, alone):
            for slot, request in enumerate(asked):
                policy.submit(slot, request)
        batch, single = (list(policy.poll(10.0)) for policy in (together, alone))
        assert [choice.slot for choice in batch] == [choice.slot for choice in single] == list(range(count))
        assert {choice.version for choice in batch} == {Version(0, 3)}
        for mine, theirs in zip(batch, single, strict=True):
            jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), mine.answer, theirs.answer)
        memories = [choice.answer.memory for choice in batch]
        asked = [request._replace(memory=memory) for request, memory in zip(asked, memories, strict=True)]
    assert together.metrics()["rows_per_act"] == count * stage.rows
    assert alone.metrics()["rows_per_act"] == stage.rows


def test_after_warm_up_nothing_is_compiled():
    stage = Stage(4, memory="gru")
    stage.actor.warm_up()
    stage.publish(0)
    with compilations() as compiled, stage:
        stage.receive_released(8)
    assert compiled == []
    assert stage.actor_account.fragments >= 8


def test_after_the_learner_came_back_elsewhere_fragments_hold_what_happened() -> None:
    """A sender that was rebound has other buffers, and an actor that wrote into the old ones would send zeros."""
    keys = RunKeys.generate()
    with TcpTransport(keys) as first, TcpTransport(keys) as second:
        moved: list[str] = []

        def reconnect(stage: Stage) -> None:
            if moved:
                stage.sender.rebind(moved.pop())

        with Stage(transport=first, reconnect=reconnect) as stage:
            stage.publish(0)
            stage.receive().release()
            old, stage.receiver = stage.receiver, second.sample_receiver(stage.layouts.record.schema)
            moved.append(stage.receiver.endpoint)
            old.close()
            for _ in range(4):
                sent = stage.receive()
                assert np.count_nonzero(sent.record.fragment.valid) == sent.header.steps > 0
                assert sent.record.fragment.reward.any()
                sent.release()
            stage.stop.set()
            stage.join()
            stage.sender.close()
            stage.receiver.close()
            stage.publisher.close()
