"""The actor: steps a ring of environment slots, and sends what happens as fragments.

While one slot's environments are being stepped, the actions of others are chosen, so neither the simulator nor the
policy waits for the other. A slot is always in one of four states:

 idle       it has no buffer: waits for credit, and at staleness 0 for a newer version of the policy
 asked      its request is with the policy
 stepping   its environments have their actions
 full       (for a moment) its fragment is committed, and it is idle again
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Rollouts
from podium.ops.random_keys import row_keys
from podium.protocol.streams import Buffer, FragmentHeader, SampleSender
from podium.runs.accounting import ActorAccount
from podium.workers.action_sources import ActionSource
from podium.workers.layout import Layouts
from podium.workers.schedule import Schedule
from podium.workers.slot import EnvSlot, Page
from podium.workers.worker_loop import run_worker_loop

WAIT_S = 0.1
"""How long an actor with nothing to step waits before it looks whether it should stop."""
SHORT_WAIT_S = 0.002
"""How long it waits for inference while it also waits for credit."""


class Actor:
    """Fills fragments from host environments, in a thread or in a process of its own.

    slots = [EnvSlot(0, env, layouts, 0.99)]
    actor = Actor(slots, policy, sender, layouts, algorithm.rollouts, key, account, make_schedule(1))
    actor.warm_up()
    actor.run(stop)

    `beat` is given the metrics about once a second. `reconnect` is called before each fragment and after each 0.2 s of
    waiting: it may rebind the streams to a learner that has come back. Nothing that it was given is closed.
    """

    def __init__(
        self,
        slots: Sequence[EnvSlot],
        policy: ActionSource,
        sender: SampleSender,
        layouts: Layouts,
        experience: Rollouts,
        key: jax.Array,
        account: ActorAccount,
        schedule: Schedule,
        beat: Callable[[dict[str, float]], None] = lambda metrics: None,
        reconnect: Callable[[], None] = lambda: None,
    ) -> None:
        self._slots = list(slots)
        self._policy = policy
        self._sender = sender
        self._layouts = layouts
        self._experience = experience
        self._account = account
        self._schedule = schedule
        self._beat = beat
        self._reconnect = reconnect
        self._key = key
        self._keys = jax.jit(partial(_key_data, length=experience.length))
        self._idle = list(range(len(self._slots)))
        self._asked = 0
        self._stepping: deque[int] = deque()
        self._pages: dict[int, Page] = {}
        self._free: list[Buffer] = []
        self._sequence = self._committed = self._produced = 0
        self._credit_wait_s = 0.0

    def warm_up(self) -> None:
        """Compile everything; nothing is stepped."""
        slot = self._slots[0]
        jax.block_until_ready(self._keys(self._key, slot.row_ids, np.uint32(0)))
        self._policy.warm_up(slot.request(), len(self._slots))

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, or an environment or a stream fails."""
        try:
            run_worker_loop(self._turn, stop, lambda: self._beat(self.metrics()), self._reconnect)
        finally:
            # Counted in the arrays, so that it can disagree with what was counted step by step.
            self._account.end(sum(slot.unfinished() for slot in self._slots))

    def metrics(self) -> dict[str, float]:
        """Counts since the start. Seconds waited are those in which there was nothing to step."""
        return {
            "steps": self._produced,
            "fragments": self._sequence,
            "env_s": sum(slot.env_s for slot in self._slots),
            "credit_wait_s": self._credit_wait_s,
            **self._policy.metrics(),
        }

    def _turn(self) -> bool:
        """Begin fragments, send what was chosen, finish the step that was started first. False if nothing moved."""
        moved = False
        if self._idle:
            moved = self._begin_fragments(0.0 if self._asked or self._stepping else WAIT_S)
        if self._asked:
            timeout = 0.0 if self._stepping else SHORT_WAIT_S if self._idle else WAIT_S
            for choice in self._policy.poll(timeout):
                self._asked -= 1
                self._slots[choice.slot].send(choice)
                moved = True
                if self._slots[choice.slot].env.steps_in_send:
                    self._receive(choice.slot)
                else:
                    self._stepping.append(choice.slot)
        if self._stepping:
            self._receive(self._stepping.popleft())
            moved = True
        return moved

    def _receive(self, place: int) -> None:
        slot = self._slots[place]
        self._produced += slot.receive()
        self._account.produced = self._produced
        if slot.t == self._experience.length:
            self._commit(slot)
            self._idle.append(place)
        else:
            self._ask(place)

    def _ask(self, place: int) -> None:
        self._policy.submit(place, self._slots[place].request())
        self._asked += 1

    def _commit(self, slot: EnvSlot) -> None:
        slot.refuse_not_finite()
        page, slot.page = slot.page, None
        assert page is not None
        assert slot.version is not None
        self._committed += slot.steps
        header = FragmentHeader(slot.number, self._sequence, slot.version, slot.steps, self._committed)
        self._sequence += 1
        self._account.commit(header.sequence, slot.steps)
        if self._schedule.in_turns:
            slot.mark(slot.fragment + 1)
        self._sender.commit(page.buffer, header)
        slot.fragment += 1

    def _begin_fragments(self, timeout: float) -> bool:
        """Open a fragment in each idle slot that may have one; waits if there is none. Says whether there was one."""
        if self._begin_due():
            return True
        if timeout == 0.0:
            return False
        began = time.perf_counter()
        if any(self._is_due(self._slots[place]) for place in self._idle):
            self._acquire(timeout)
        else:
            self._policy.refresh(timeout)
        self._credit_wait_s += time.perf_counter() - began
        return self._begin_due()

    def _begin_due(self) -> bool:
        if self._schedule.in_turns and len(self._idle) == len(self._slots):
            self._policy.refresh(0.0)
        self._acquire(0.0)
        begun = []
        for place in self._idle:
            if not self._free:
                break
            if self._is_due(self._slots[place]):
                self._begin(place, self._free.pop(0))
                begun.append(place)
        for place in begun:
            self._idle.remove(place)
        return bool(begun)

    def _is_due(self, slot: EnvSlot) -> bool:
        """Whether a slot may begin its next fragment, given a buffer.

        Not if it is a whole fragment ahead of another: while that one fills its fragment, updates would be made of
        the others' alone, and its versions would be too old by the time it is full.
        """
        if slot.begun > min(other.begun for other in self._slots):
            return False
        return self._schedule.may_begin(slot.version, self._policy.version)

    def _begin(self, place: int, buffer: Buffer) -> None:
        # Not only when there is nothing to do: a learner that was restored gives credit for what it drops, and an actor
        # that went on with its predecessor's parameters would never wait.
        self._reconnect()
        slot = self._slots[place]
        page = self._pages.get(buffer.index)
        if page is None or page.buffer.arrays is not buffer.arrays:  # a sender that was rebound may have others
            page = self._pages[buffer.index] = Page(buffer, self._layouts)
        fragment = self._schedule.number(slot.fragment, self._policy.version)
        step = np.uint32((1 + fragment * self._experience.length) % 2**32)
        slot.begin(page, fragment, np.asarray(self._keys(self._key, slot.row_ids, step)))
        self._ask(place)

    def _acquire(self, timeout: float) -> None:
        """Take every buffer that is free, after waiting for the first."""
        while (buffer := self._sender.acquire(timeout)) is not None:
            self._free.append(buffer)
            timeout = 0.0


def _key_data(key: jax.Array, row_ids: jax.Array, step: jax.Array, length: int) -> jax.Array:
    """All keys of a fragment at once, [T, R, 2]: folding them in at each act would cost more than the policy."""
    keys = jax.vmap(lambda t: row_keys(key, row_ids, step + t))(jnp.arange(length, dtype=jnp.uint32))
    return jax.random.key_data(keys)
