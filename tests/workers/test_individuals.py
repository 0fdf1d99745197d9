"""Individuals in host environments: what an actor sends of them, and what a learner makes of what comes, late or
never."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Self

import jax
import numpy as np
import pytest

from podium.algorithms import es
from podium.algorithms.algorithm import Individuals
from podium.core.algorithm_configs import ESConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.core.errors import EnvError
from podium.envs.gymnasium import GymnasiumEnv
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import FragmentHeader
from podium.runs.accounting import ActorAccount, LearnerAccount, balance
from podium.workers.individual_actor import IndividualActor, draw_population, read_mean
from podium.workers.individual_learner import IndividualLearner
from podium.workers.individual_records import IndividualRecords
from podium.workers.individual_slot import Individual, IndividualSlot
from podium.workers.layout import make_layouts
from podium.workers.schedule import make_schedule
from workers.compiling import compilations
from workers.stage import Counter

LIMIT_S, ROWS, POPULATION = 60.0, 4, 16
KEY, FIRST = jax.random.key(1), Version(0, 0)


class TwoLives(Counter):
    """A game of two incarnations of 3 steps, each an episode to who learns from it, as the `atari` wrapper makes
    them."""

    def __init__(self, end: str) -> None:
        super().__init__(end)
        self.count = 6

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count %= 6
        return np.array([self.count], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        obs = np.array([self.count], np.float32)
        return obs, float(self.count), self.count in (3, 6), False, {"episode_over": self.count == 6}


class Theatre:
    """Both ends of a population's streams in one process; `learner` is made where it is asked for."""

    def __init__(
        self,
        slots: int = 1,
        staleness: int = 1,
        devices: int = 1,
        end: str = "terminated",
        env: type[Counter] = Counter,
        **algorithm: Any,
    ) -> None:
        config = ESConfig(**{"noise_table": 10_000, "population": POPULATION, "episode_limit": 50, **algorithm})
        topology = TopologyConfig(staleness=staleness)
        self.experiment = Experiment(config, EnvConfig("counter", num_envs=ROWS), NetworkConfig(hidden=(4,)), topology)
        self._ends, self.schedule, self.devices = ExitStack(), make_schedule(staleness), devices
        rows = ROWS // slots
        self.envs = [
            self._ends.enter_context(closing(GymnasiumEnv(partial(env, end), range(n * rows, (n + 1) * rows))))
            for n in range(slots)
        ]
        spec = self.envs[0].spec
        self.algorithm = es.make(config, self.experiment, spec)
        assert isinstance(self.algorithm.experience, Individuals)
        self.individuals = self.algorithm.experience
        self.layouts = make_layouts(self.algorithm, spec, self.experiment, rows)
        self.transport = self._ends.enter_context(MemoryTransport())
        self.receiver = self.transport.sample_receiver(self.layouts.record.schema)
        self.publisher = self.transport.parameter_publisher("main", self.layouts.params.schema)
        self.state = jax.jit(lambda: self.algorithm.init(KEY, spec, config.hyper()))()
        self.account, self.actor_account = LearnerAccount(None), ActorAccount.in_memory()
        self.stop, self.error = threading.Event(), None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._ends.close()

    def sender(self, worker: int = 0, credits: int = 8) -> Any:
        incarnation = SenderId(worker, 0)
        return self.transport.sample_sender(self.receiver.endpoint, self.layouts.record.schema, incarnation, credits)

    def learner(self, version: Version = FIRST) -> IndividualLearner:
        ends = self.receiver, self.publisher, self.account
        devices = jax.local_devices()[: self.devices]
        return IndividualLearner(self.algorithm, self.layouts, self.state, KEY, version, *ends, self.schedule, devices)

    def actor(self) -> IndividualActor:
        reader = self.transport.parameter_reader(self.publisher.endpoint, self.layouts.params.schema)
        memory = self.layouts.request.tree(self.layouts.request.schema.fields).memory
        slots = [
            IndividualSlot(n, env, self.layouts.params, memory, self.individuals) for n, env in enumerate(self.envs)
        ]
        mean = read_mean(self.layouts, reader)
        how = KEY, [0], ROWS, self.actor_account, self.schedule
        return IndividualActor(slots, mean, self.sender(), self.layouts, self.algorithm, *how)

    def publish(self, update: int) -> None:
        params = self.algorithm.params(self.state)
        self.publisher.publish(Version(0, update), self.layouts.params.arrays(params))

    def receive(self) -> Iterator[tuple[FragmentHeader, IndividualRecords]]:
        """What an actor sends, copied."""
        while True:
            received = self.receiver.receive(LIMIT_S)
            assert received is not None, self.error
            records = jax.tree.map(np.array, self.layouts.record.tree(received.arrays))
            received.release()
            yield received.header, records

    def play(self) -> Iterator[tuple[FragmentHeader, IndividualRecords]]:
        """Start the actor in a thread."""
        actor = self.actor()
        actor.warm_up()

        def run() -> None:
            try:
                actor.run(self.stop)
            except BaseException as error:  # noqa: BLE001 - shown by whoever waits in vain
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        return self.receive()


def batch_size(theatre: Theatre) -> int:
    return theatre.layouts.record.schema.fields[0].shape[0]


def send(theatre: Theatre, sender: Any, sequence: int, version: Any, first: float, lengths: Any, slot: int = 0) -> None:
    """A batch of individuals with returns first, first + 1, ..., as an actor would send it."""
    buffer = sender.acquire(LIMIT_S)
    records: IndividualRecords = theatre.layouts.record.tree(buffer.arrays)
    n = len(records.index)
    records.index[...] = np.arange(n) * 10 + 100 * slot
    records.sign[...] = np.where(np.arange(n) % 2, -1, 1)
    records.returns[...] = first + np.arange(n)
    records.lengths[...] = lengths
    records.version[...] = version
    if records.seen is not None:
        records.seen.weight[...], records.seen.obs[...] = n / 2, np.array([[slot + 0.1], [sequence - 0.7]])
    steps = int(records.lengths.sum())
    sender.produced = getattr(sender, "produced", 0) + steps
    theatre.actor_account.produced += steps
    theatre.actor_account.commit(sequence, steps)
    sender.commit(buffer, FragmentHeader(slot, sequence, Version(0, int(np.min(version))), steps, sender.produced))


def test_an_individuals_record_has_at_most_64_bytes() -> None:
    with Theatre() as theatre:
        columns = [field for field in theatre.layouts.record.schema.fields if not field.name.startswith("seen")]
        assert {field.name for field in columns} == {"index", "sign", "returns", "lengths", "version"}
        assert sum(field.nbytes / batch_size(theatre) for field in columns) == 17


def test_an_actor_plays_pairs_to_the_end_of_their_episodes_and_tells_what_they_reached() -> None:
    with Theatre(normalize_observations=True) as theatre:
        theatre.publish(7)
        sent = theatre.play()
        batches = [next(sent) for _ in range(8)]
        theatre.stop.set()
        theatre.thread.join(LIMIT_S)
        header, _ = batches[-1]
        n = batch_size(theatre)
        for _, records in batches:
            assert records.returns.tolist() == [6.0] * n  # 1 + 2 + 3
            assert records.lengths.tolist() == [3] * n
            assert records.version.tolist() == [7] * n
            assert records.index.min() >= 0
            assert records.index.max() <= theatre.individuals.last_index
            assert records.seen is not None
            assert records.seen.weight.sum() >= n
        # Each row plays an index with one sign, then the same with the other.
        indices = np.concatenate([records.index for _, records in batches])
        signs = np.concatenate([records.sign for _, records in batches])
        sums = {index: signs[indices == index].sum() for index in indices[: -2 * ROWS].tolist()}
        assert set(sums.values()) == {0}
        assert header.produced == 3 * 8 * n
        # Both ends' counts agree: what was sent, and what was under way.
        under_way = sum(theatre.actor_account.steps_of(i) for i in range(8, theatre.actor_account.fragments))
        assert theatre.actor_account.produced == header.produced + theatre.actor_account.unfinished + under_way


def test_both_of_a_pair_are_played_around_one_mean_unless_it_has_become_too_old() -> None:
    with Theatre() as theatre:
        actor = theatre.actor()
        slot, deal, mean = actor._slots[0], actor._deal, actor._mean

        def next_after(update: int) -> tuple[Individual, Any]:
            theatre.publish(update)
            assert mean.refresh(LIMIT_S)
            chosen = deal.next(slot, 0, mean)
            assert chosen is not None
            return chosen

        (first, params), (mirror, same) = next_after(3), next_after(4)
        assert mirror == first._replace(sign=-1)
        assert mirror.version == Version(0, 3)
        assert same is params
        (third, params), (fresh, newer) = next_after(5), next_after(7)
        assert (third.sign, fresh.sign) == (1, 1), "two versions on, the other side of the pair would be left out"
        assert fresh.version == Version(0, 7)
        assert newer is not params


def test_at_staleness_0_every_row_plays_its_part_of_the_population_and_waits_for_the_next_version() -> None:
    with Theatre(slots=2, staleness=0) as theatre:
        theatre.publish(3)
        sent = theatre.play()
        batches = sorted((next(sent) for _ in range(2)), key=lambda batch: batch[0].slot)
        pairs = draw_population(theatre.individuals, seed=0, update=3)
        played = [(i, s) for _, records in batches for i, s in zip(records.index, records.sign, strict=True)]
        assert sorted(played) == sorted((i, s) for i in pairs for s in (1, -1))
        assert theatre.receiver.receive(0.3) is None
        theatre.publish(4)
        again = [next(sent)[1] for _ in range(2)]
        assert {version for records in again for version in records.version} == {4}


def test_a_individual_stopped_by_the_limit_leaves_its_row_until_the_episode_ends() -> None:
    with Theatre(episode_limit=2) as theatre:
        theatre.publish(0)
        sent = theatre.play()
        for _ in range(4):
            _, records = next(sent)
            assert set(records.returns.tolist()) == {3.0}  # 1 + 2: always from an episode's start
            assert set(records.lengths.tolist()) == {2}


@pytest.mark.parametrize("limit", [50, 4], ids=["whole games", "stopped in the second incarnation"])
def test_a_individual_plays_on_when_a_life_is_lost_and_begins_with_a_new_game(limit: int) -> None:
    with Theatre(episode_limit=limit, normalize_observations=True, env=TwoLives) as theatre:
        theatre.publish(0)
        sent, length = theatre.play(), min(limit, 6)
        for _ in range(4):
            _, records = next(sent)
            assert set(records.lengths.tolist()) == {length}  # the row that resets after a lost incarnation is no step
            assert set(records.returns.tolist()) == {sum(range(1, length + 1))}
        theatre.stop.set()
        theatre.thread.join(LIMIT_S)
        assert records.seen is not None
        # Steps are made from 0 to 5; the last observation of an incarnation is not what an action is chosen from.
        mean = records.seen.weight @ records.seen.obs[:, 0] / records.seen.weight.sum()
        np.testing.assert_allclose(mean, (length - 1) / 2, atol=0.6)


def test_an_episode_that_never_ends_after_its_individual_was_stopped_is_an_error() -> None:
    with Theatre(episode_limit=2, end="never") as theatre:
        theatre.publish(0)
        actor = theatre.actor()
        actor.warm_up()
        with pytest.raises(EnvError, match=r"has not ended 20 steps after .* give env.wrappers a time_limit\(2\)"):
            actor.run(theatre.stop)


def test_late_individuals_are_left_out_and_counted_and_a_missing_actor_is_not_waited_for() -> None:
    with Theatre() as theatre:
        learner, sender = theatre.learner(Version(0, 5)), theatre.sender()
        n = batch_size(theatre)
        assert n == POPULATION // 4
        ages = np.resize([5, 4, 3, 5], n)  # one in four is two versions old
        for sequence in range(5):
            send(theatre, sender, sequence, ages, first=10.0 * sequence, lengths=10)
        assert learner.step(timeout=0.1) is None
        send(theatre, sender, 5, 5, first=0.0, lengths=10)
        learned = learner.step(LIMIT_S)
        assert learned is not None
        assert len(learned.episodes) == 5 * (3 * n // 4) + n  # at least a population, by whole batches
        assert learned.steps == 10 * len(learned.episodes)
        assert learned.staleness_max == 1
        account = theatre.account.record
        assert (account.trained, account.stale) == (learned.steps, 10 * 5 * (n // 4))
        assert learner.version == Version(0, 6)
        theatre.actor_account.end(0)
        samples = balance(account, {"0.0": theatre.actor_account})
        assert (samples.lost, samples.in_flight, samples.unexplained) == (0, 0, 0)


def test_individuals_of_a_learner_that_died_are_stale() -> None:
    with Theatre() as theatre:
        learner, sender = theatre.learner(Version(1, 5)), theatre.sender()
        send(theatre, sender, 0, 5, first=0.0, lengths=3)
        assert learner.step(timeout=0.1) is None
        assert theatre.account.record.stale == 3 * batch_size(theatre)


def test_what_a_killed_actor_never_sent_is_lost_once_its_next_batch_is_there() -> None:
    with Theatre() as theatre:
        learner, sender = theatre.learner(), theatre.sender()
        send(theatre, sender, 0, 0, first=0.0, lengths=3)
        sender.produced += 100  # two batches that nobody will see
        send(theatre, sender, 3, 0, first=0.0, lengths=3)
        assert learner.step(timeout=0.1) is None
        assert theatre.account.record.incarnations["0.0"].lost == 100


def test_at_staleness_0_the_order_of_arrival_changes_nothing() -> None:
    ends = []
    for order in ((0, 1), (1, 0)):
        with Theatre(slots=2, staleness=0, normalize_observations=True) as theatre:
            learner, senders = theatre.learner(), [theatre.sender(worker) for worker in range(2)]
            for slot in order:
                send(theatre, senders[slot], 0, 0, first=7.0 * slot, lengths=2, slot=slot)
            assert learner.step(LIMIT_S) is not None
            ends.append(jax.device_get(learner.state))
    jax.tree.map(np.testing.assert_array_equal, *ends)
    assert float(ends[0].observations.count) > 0


@pytest.mark.parametrize("devices", [1, 2])
def test_after_warming_up_nothing_is_left_to_compile(devices: int) -> None:
    with Theatre(devices=devices) as theatre:
        learner, sender = theatre.learner(), theatre.sender()
        learner.warm_up()
        with compilations() as compiled:
            for update in range(2):
                for sequence in range(4 * update, 4 * update + 4):
                    send(theatre, sender, sequence, update, first=3.0 * sequence, lengths=2)
                assert learner.step(LIMIT_S) is not None
        assert compiled == []


def test_an_update_shared_by_two_devices_is_the_same() -> None:
    ends = []
    for devices in (1, 2):
        with Theatre(devices=devices, normalize_observations=True) as theatre:
            learner, sender = theatre.learner(), theatre.sender()
            learner.warm_up()
            for sequence in range(4):
                send(theatre, sender, sequence, 0, first=3.0 * sequence, lengths=2)
            assert learner.step(LIMIT_S) is not None
            ends.append(jax.device_get(learner.state))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *ends)
