"""The actor of a population: plays individuals in the rows of its slots, and sends what they reached.

With staleness, a row that is free takes the newest parameters and a new pair of noise, whatever the others do; both of
the pair are played around these parameters, one after the other, unless newer ones have made them too old. At
staleness 0 each row plays a fixed part of the population, slot by slot, and waits for the next version: the same
individuals with the same parameters, however many actors share them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from podium.algorithms.algorithm import Algorithm, Individuals
from podium.core.types import ActInput, Tree
from podium.ops.random_keys import row_keys
from podium.protocol.schema import Version
from podium.protocol.streams import Buffer, FragmentHeader, ParameterReader, SampleSender
from podium.runs.accounting import ActorAccount
from podium.workers.action_sources import Weights
from podium.workers.actor import WAIT_S
from podium.workers.individual_records import IndividualRecords
from podium.workers.individual_slot import Individual, IndividualSlot, Inputs
from podium.workers.layout import Layouts
from podium.workers.population import act_each
from podium.workers.schedule import Schedule
from podium.workers.worker_loop import run_worker_loop


def read_mean(layouts: Layouts, reader: ParameterReader) -> Weights:
    """The newest parameters, on the host; those of older versions stay as they are for individuals that hold them."""
    return Weights(layouts.params, reader, partial(jax.tree.map, np.array))


def draw_population(individuals: Individuals, seed: int, update: int) -> np.ndarray:
    """Indices of all pairs of an update's population, the same for whoever asks."""
    return np.random.default_rng([seed, update]).integers(0, individuals.last_index + 1, individuals.population // 2)


def jit_act(algorithm: Algorithm) -> Callable[[jax.Array, Inputs], tuple[jax.Array, Tree]]:
    """Actions of rows with parameters of their own. Action noise belongs to an individual and its step."""

    def act(key: jax.Array, inputs: Inputs) -> tuple[jax.Array, Tree]:
        who = 2 * inputs.index + (inputs.sign < 0)
        keys, ones = row_keys(key, who, inputs.step), jnp.ones(len(who))
        seen = ActInput(inputs.obs, inputs.first, inputs.mask, keys, ones)
        return act_each(algorithm, inputs.params, inputs.memory, seen)

    return jax.jit(act)


class IndividualActor:
    """Plays individuals in host environments, in a thread or in a process of its own.

    mean = read_mean(layouts, reader)
    actor = IndividualActor(slots, mean, sender, layouts, algorithm, key, seed, num_envs, account, make_schedule(1))
    actor.warm_up()
    actor.run(stop)

    `seed` is the run's at staleness 0, else the actor's own. `beat` and `reconnect` are as in `workers.actor`.
    """

    def __init__(
        self,
        slots: Sequence[IndividualSlot],
        mean: Weights,
        sender: SampleSender,
        layouts: Layouts,
        algorithm: Algorithm,
        key: jax.Array,
        seed: Sequence[int],
        num_envs: int,
        account: ActorAccount,
        schedule: Schedule,
        beat: Callable[[dict[str, float]], None] = lambda metrics: None,
        reconnect: Callable[[], None] = lambda: None,
    ) -> None:
        assert isinstance(algorithm.experience, Individuals)
        self._slots, self._mean, self._sender, self._layouts = list(slots), mean, sender, layouts
        self._individuals, self._schedule, self._account = algorithm.experience, schedule, account
        self._beat, self._reconnect = beat, reconnect
        self._act = partial(jit_act(algorithm), key)
        self._batch = len(layouts.record.tree(layouts.record.schema.allocate()).index)
        self._free: list[Buffer] = []
        self._sequence = self._committed = self._produced = self._finished = 0
        self._credit_wait_s = self._act_s = 0.0
        deal = partial(_InOrder, num_envs) if schedule.in_turns else _AtRandom
        self._deal = deal(self._individuals, seed, schedule)

    def warm_up(self) -> None:
        """Compile everything; nothing is stepped."""
        jax.block_until_ready(self._act(self._slots[0].inputs()))

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set, or an environment or a stream fails."""
        try:
            run_worker_loop(self._turn, stop, lambda: self._beat(self.metrics()), self._reconnect)
        finally:
            # Counted in what is left, so that it can disagree with what was counted step by step.
            self._account.end(sum(slot.unfinished() for slot in self._slots))

    def metrics(self) -> dict[str, float]:
        """Counts since the start. Seconds waited are those in which there was nothing to step."""
        return {
            "steps": self._produced,
            "fragments": self._sequence,
            "individuals": self._finished,
            "env_s": sum(slot.env_s for slot in self._slots),
            "inference_wait_s": self._act_s,
            "credit_wait_s": self._credit_wait_s,
        }

    def _turn(self) -> bool:
        """One step of every slot that may make one; while one is being stepped, the next one's actions are chosen."""
        self._mean.refresh(0.0)
        stepping = [slot for slot in self._slots if self._prepare(slot)]
        if not stepping:
            self._wait()
        for slot in stepping:
            began = time.perf_counter()
            action, memory = self._act(slot.inputs())
            action = np.asarray(action)
            self._act_s += time.perf_counter() - began
            slot.send(action, memory)
        for slot in stepping:
            finished = len(slot.finished)
            self._produced += slot.receive()
            self._account.produced = self._produced
            self._finished += len(slot.finished) - finished
        return bool(stepping)

    def _prepare(self, slot: IndividualSlot) -> bool:
        """Send what is full, and let individuals begin in the rows that are free. False if the slot must wait."""
        while len(slot.finished) >= self._batch:
            if not self._commit(slot):
                return False
        if self._mean.version is None or not self._deal.may_play(slot, self._mean.version):
            return False
        for row in slot.waiting():
            if (chosen := self._deal.next(slot, row, self._mean)) is not None:
                slot.begin(row, *chosen)
        return True

    def _commit(self, slot: IndividualSlot) -> bool:
        """Send a batch, if there is credit for it."""
        buffer = self._free.pop() if self._free else self._sender.acquire(0.0)
        if buffer is None:
            return False
        # A learner that was restored is somewhere else, and an actor that is never idle would not notice.
        self._reconnect()
        batch, slot.finished = slot.finished[: self._batch], slot.finished[self._batch :]
        records: IndividualRecords = self._layouts.record.tree(buffer.arrays)
        records.index[...] = [done.individual.index for done in batch]
        records.sign[...] = [done.individual.sign for done in batch]
        records.returns[...] = [done.returned for done in batch]
        records.lengths[...] = [done.length for done in batch]
        records.version[...] = [done.individual.version.update for done in batch]
        if slot.tally is not None and records.seen is not None:
            slot.tally.write(records.seen)
        steps = sum(done.length for done in batch)
        self._committed += steps
        oldest = min(done.individual.version for done in batch)
        header = FragmentHeader(slot.number, self._sequence, oldest, steps, self._committed)
        self._account.commit(self._sequence, steps)
        self._sequence += 1
        if self._schedule.in_turns:  # all that the slot plays of a population is one batch
            slot.mark(oldest.update + 1)
        self._sender.commit(buffer, header)
        return True

    def _wait(self) -> None:
        """For credit if a slot has something to send, else for a version."""
        began = time.perf_counter()
        if any(len(slot.finished) >= self._batch for slot in self._slots):
            if (buffer := self._sender.acquire(WAIT_S)) is not None:
                self._free.append(buffer)
        else:
            self._mean.refresh(WAIT_S)
        self._credit_wait_s += time.perf_counter() - began


class _AtRandom:
    """New noise whenever a row is free; after it the same with the other sign, around the same mean."""

    def __init__(self, individuals: Individuals, seed: Sequence[int], schedule: Schedule) -> None:
        self._last, self._schedule = individuals.last_index, schedule
        self._random = np.random.default_rng(list(seed))
        self._partners: dict[tuple[int, int], tuple[Individual, Tree]] = {}  # of a row: who plays the other sign next

    def may_play(self, slot: IndividualSlot, newest: Version) -> bool:
        return True

    def next(self, slot: IndividualSlot, row: int, mean: Weights) -> tuple[Individual, Tree] | None:
        place = slot.number, row
        assert mean.version is not None
        if (partner := self._partners.pop(place, None)) is not None:
            individual, params = partner
            if self._schedule.accepts(individual.version, mean.version):
                return individual._replace(sign=-1), params
        individual = Individual(int(self._random.integers(0, self._last + 1)), 1, mean.version)
        self._partners[place] = individual, mean.params
        return self._partners[place]


class _InOrder:
    """Individuals of an update's population by number: row r of all plays the r-th part of them."""

    def __init__(self, num_envs: int, individuals: Individuals, seed: Sequence[int], schedule: Schedule) -> None:
        self._individuals, self._seed, self._schedule = individuals, seed[0], schedule
        self._share = individuals.population // num_envs
        self._left: dict[int, np.ndarray] = {}  # of each slot, how many its rows have yet to begin
        self._pairs: tuple[int, np.ndarray] | None = None  # update, and indices of its pairs

    def may_play(self, slot: IndividualSlot, newest: Version) -> bool:
        left = self._left.get(slot.number)
        if left is not None and (left.any() or slot.is_playing):
            return True
        if not self._schedule.may_begin(slot.version, newest):
            return False
        slot.version = newest
        slot.restart()
        self._left[slot.number] = np.full(slot.rows, self._share)
        if self._pairs is None or self._pairs[0] != newest.update:
            self._pairs = newest.update, draw_population(self._individuals, self._seed, newest.update)
        return True

    def next(self, slot: IndividualSlot, row: int, mean: Weights) -> tuple[Individual, Tree] | None:
        left = self._left[slot.number]
        if not left[row]:
            return None
        number = (slot.number * slot.rows + row + 1) * self._share - left[row]
        left[row] -= 1
        assert self._pairs is not None
        assert slot.version is not None
        return Individual(int(self._pairs[1][number // 2]), 1 if number % 2 == 0 else -1, slot.version), mean.params
