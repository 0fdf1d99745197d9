"""Everything around an actor: an experiment, its streams in memory, and a plain loop that says what it must send."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple, Self

import gymnasium
import jax
import numpy as np

from podium.algorithms import ppo
from podium.core.algorithm_configs import PPOConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig
from podium.core.types import ActInput, Tree
from podium.envs import registry
from podium.envs.gymnasium import GymnasiumEnv
from podium.envs.interface import HostEnv
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import FragmentHeader, InferenceClient, Transport
from podium.runs.accounting import ActorAccount
from podium.workers.action_sources import ActionSource, InlineActions
from podium.workers.actor import Actor
from podium.workers.inference import InferenceWorker
from podium.workers.layout import Record, make_layouts
from podium.workers.schedule import make_schedule
from podium.workers.served_actions import ServedActions
from podium.workers.slot import EnvSlot

LENGTH, ROWS, GAMMA, LIMIT_S = 5, 4, 0.5, 60.0
KEY = jax.random.key(1)


class Counter(gymnasium.Env):
    """Observes how many steps it has made, and is paid as much. Ends after 3 steps, by `end`."""

    observation_space = gymnasium.spaces.Box(-1, 100, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, end: str = "terminated") -> None:
        self.end = end

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return np.array([0.0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        over = self.count == 3
        obs = np.array([self.count], np.float32)
        return obs, float(self.count), over and self.end == "terminated", over and self.end == "truncated", {}


class Sent(NamedTuple):
    """A fragment as it arrived, and the way to give its credit back."""

    header: FragmentHeader
    record: Record
    release: Callable[[], None]


class Stage:
    """An actor in a thread, with the learner's ends in our hands.

    with Stage(slots=2, env="podium:Catch-v0") as stage:
        stage.publish(0)
        sent = stage.receive()
    """

    def __init__(
        self,
        slots: int = 1,
        env: str | Callable[[], gymnasium.Env] = Counter,
        staleness: int = 1,
        credits: int | None = None,
        memory: str = "none",
        fragment: int = 0,
        wrap: Callable[[int, HostEnv], HostEnv] = lambda slot, env: env,
        wrap_policy: Callable[[ActionSource], ActionSource] = lambda policy: policy,
        servers: int = 0,
        limit: float = LIMIT_S,
        num_envs: int = ROWS,
        transport: Transport | None = None,
        reconnect: Callable[["Stage"], None] = lambda stage: None,
    ) -> None:
        self.experiment = Experiment(
            algorithm=PPOConfig(fragment_length=LENGTH, minibatch_size=LENGTH * num_envs, num_epochs=1, gamma=GAMMA),
            env=EnvConfig(env if isinstance(env, str) else "counter", num_envs=num_envs),
            network=NetworkConfig(hidden=(4,), memory=memory, memory_size=4),
        )
        self.env, self.rows, self.slots = env, num_envs // slots, slots
        self.stop, self.error, self.waits, self.beats = threading.Event(), None, threading.Semaphore(0), []
        self._ends, self._params = ExitStack(), {}
        envs = [wrap(slot, self._ends.enter_context(closing(self.make_env(slot)))) for slot in range(slots)]
        self.spec = envs[0].spec
        self.algorithm = ppo.make(self.experiment.algorithm, self.experiment, self.spec)
        self.layouts = make_layouts(self.algorithm, self.spec, self.experiment, self.rows)
        self.transport = transport or MemoryTransport()
        self.receiver = self.transport.sample_receiver(self.layouts.record.schema)
        self.publisher = self.transport.parameter_publisher("main", self.layouts.params.schema)
        schedule = make_schedule(staleness)
        credits = schedule.credits(slots) if credits is None else credits
        self.sender = self.transport.sample_sender(
            self.receiver.endpoint, self.layouts.record.schema, SenderId(0, 0), credits
        )
        self.servers = [self.transport.inference_server(*self.schemas) for _ in range(servers)]
        self.clients = [self.client(server.endpoint, limit) for server in self.servers]
        self.actor_account = ActorAccount.in_memory()
        if servers:
            self.policy: ActionSource = ServedActions(
                self.clients, self.layouts, self.reader() if schedule.in_turns else None
            )
        else:
            self.policy = InlineActions(self.algorithm, self.layouts, self.reader(), schedule)
        self.policy = wrap_policy(self.policy)
        self.actor = Actor(
            [EnvSlot(i, env, self.layouts, self.algorithm.rollouts.discount, fragment) for i, env in enumerate(envs)],
            self.policy,
            self.sender,
            self.layouts,
            self.algorithm.rollouts,
            KEY,
            self.actor_account,
            schedule,
            self.beats.append,
            lambda: (self.waits.release(), reconnect(self))[0],
        )
        self._threads = [threading.Thread(target=self._run, args=(self.actor,), daemon=True)]

    @property
    def schemas(self):
        return self.layouts.request.schema, self.layouts.answer.schema

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.join()
        self._ends.close()

    def join(self) -> None:
        """Wait for the actor's end, and raise what it died of."""
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        if (error := self.error) is not None:
            self.error = None
            raise error

    def serve(self, server: int, max_rows: int = 64, reconnect: Callable[[], None] = lambda: None) -> InferenceWorker:
        """An inference worker in a thread of its own, to be called before the stage is entered."""
        worker = InferenceWorker(
            self.algorithm,
            self.layouts,
            self.servers[server],
            self.reader(),
            max_rows,
            wait_s=0.0,
            reconnect=reconnect,
        )
        self._threads.append(threading.Thread(target=self._run, args=(worker,), daemon=True))
        return worker

    def make_env(self, slot: int) -> HostEnv:
        """Environments of a slot, the same at each call."""
        seeds = range(slot * self.rows, (slot + 1) * self.rows)
        if isinstance(self.env, str):
            return registry.resolve(EnvConfig(self.env)).make_host(seeds=seeds)
        return GymnasiumEnv(self.env, seeds)

    def params(self, seed: int = 0) -> Tree:
        """Parameters of one of several versions."""
        if seed not in self._params:
            hyper = self.experiment.hyper()
            init = jax.jit(lambda key: self.algorithm.params(self.algorithm.init(key, self.spec, hyper)))
            self._params[seed] = init(jax.random.key(seed))
        return self._params[seed]

    def publish(self, update: int, incarnation: int = 0, seed: int = 0) -> None:
        self.publisher.publish(Version(incarnation, update), self.layouts.params.arrays(self.params(seed)))

    def reader(self):
        return self.transport.parameter_reader(self.publisher.endpoint, self.layouts.params.schema)

    def client(self, endpoint: str, limit: float = LIMIT_S) -> InferenceClient:
        incarnation = SenderId(0, len(getattr(self, "clients", [])))
        return self.transport.inference_client(endpoint, *self.schemas, incarnation, [self.rows] * self.slots, limit)

    def receive(self) -> Sent:
        """The next fragment, copied."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            if (received := self.receiver.receive(0.1)) is not None:
                record = self.layouts.record.tree([array.copy() for array in received.arrays])
                return Sent(received.header, record, received.release)
            if self.error is not None:
                self.join()
        raise AssertionError("no fragment came")

    def receive_released(self, count: int) -> list[Sent]:
        """So many fragments, each released as it comes."""
        sent = []
        for _ in range(count):
            sent.append(self.receive())
            sent[-1].release()
        return sent

    def wait_until_it_waits(self) -> None:
        """Until the actor has called `reconnect` after a pause: it has stepped all that it can."""
        while self.waits.acquire(blocking=False):
            pass
        paused_s = 0.0
        while paused_s < 0.15:
            began = time.monotonic()
            assert self.waits.acquire(timeout=LIMIT_S)
            paused_s = time.monotonic() - began

    def _run(self, worker: Actor | InferenceWorker) -> None:
        try:
            worker.run(self.stop)
        except BaseException as error:  # noqa: BLE001 - raised by join
            self.error = error


@jax.jit
def noise_keys(env_ids: np.ndarray, step: int) -> jax.Array:
    """Of each row of one step."""
    return jax.vmap(lambda env_id: jax.random.fold_in(jax.random.fold_in(KEY, env_id), step))(env_ids)


def play(stage: Stage, slot: int, fragments: Sequence[int], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What a slot must send for these fragment numbers with these parameters: a plain loop, a list for each field."""
    algorithm, env, rows = stage.algorithm, stage.make_env(slot), stage.rows
    act = jax.jit(lambda params, memory, inputs: algorithm.act(params, memory, inputs, False))
    memory, now = algorithm.memory(stage.params(), rows), env.reset()
    first, over, discounted = np.ones(rows, bool), np.zeros(rows, bool), np.zeros(rows)
    told = []
    for n, seed in zip(fragments, seeds, strict=True):
        params, steps, start = stage.params(seed), [], jax.tree.map(np.array, memory)
        for t in range(LENGTH):
            keys = noise_keys(np.arange(slot * rows, (slot + 1) * rows), 1 + n * LENGTH + t)
            seen = ActInput(now.obs, first, now.mask, keys, np.ones(rows, np.float32))
            action, extras, memory = act(params, memory, seen)
            before = {"obs": now.obs, "first": first, "mask": now.mask, "action": action, "extras": extras}
            before = jax.tree.map(np.array, before | {"valid": ~over})
            now = env.step(np.asarray(action))
            discounted = np.where(before["first"], 0, discounted) * GAMMA + now.reward
            first, over = over, now.terminated | now.truncated
            after = {"reward": now.reward, "terminated": now.terminated, "truncated": now.truncated}
            after["discounted"] = discounted
            after["returns"] = np.where(now.episode_over, now.episode_return, 0)
            after["lengths"] = np.where(now.episode_over, now.episode_length, 0)
            steps.append(before | jax.tree.map(np.array, after))
        whole = {name: jax.tree.map(lambda *x: np.stack(x), *(step[name] for step in steps)) for name in steps[0]}
        for name, last in (("obs", now.obs), ("first", first), ("mask", now.mask)):
            whole[name] = jax.tree.map(lambda x, y: np.concatenate([x, y[None]]), whole[name], last)
        told.append(whole | {"memory": start})
    env.close()
    return told


def assert_same(record: Record, told: dict[str, Any], rtol: float = 1e-5) -> None:
    """Whether a fragment is what the plain loop says: floats up to their last bits."""
    have = record.fragment._asdict() | record.episodes._asdict()
    for name, expected in told.items():
        assert jax.tree.structure(have[name]) == jax.tree.structure(expected), name
        for mine, theirs in zip(jax.tree.leaves(have[name]), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-6, err_msg=name)
