"""After warming up nothing is left to compile: the first round takes as long as the others."""

from collections.abc import Callable
from contextlib import closing

import jax
import pytest

from podium.algorithms import dqn, learning
from podium.core.algorithm_configs import DQNConfig
from podium.core.config import EnvConfig, Experiment, NetworkConfig, TopologyConfig
from podium.envs import toy
from podium.envs.jax_wrappers import vectorize
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId, Version
from podium.protocol.streams import FragmentHeader
from podium.runs.accounting import LearnerAccount
from podium.workers.fused import Fused
from podium.workers.layout import make_layouts
from podium.workers.learner import Learned, Learner
from podium.workers.schedule import make_schedule
from workers.compiling import compilations

CONFIG = DQNConfig(fragment_length=4, batch_size=8, buffer_size=64, learning_starts=0)
EXPERIMENT = Experiment(
    CONFIG, EnvConfig("podium:Catch-v0", num_envs=4), NetworkConfig(hidden=(4,)), TopologyConfig(dispatch=1)
)
ENV = toy.make_env("Catch-v0", {})
ALGORITHM = dqn.make(CONFIG, EXPERIMENT, ENV.spec)


def fused() -> Callable[[], object]:
    program = Fused(ALGORITHM, vectorize(ENV), EXPERIMENT, jax.local_devices()[:1])
    state = program.place(program.init())
    program.warm_up(state)
    return lambda: jax.block_until_ready(program.dispatch(state, 10**9))


def with_workers(beat: Callable[[], None] = lambda: None) -> Callable[[], Learned | None]:
    layouts = make_layouts(ALGORITHM, ENV.spec, EXPERIMENT, 4)
    transport = MemoryTransport()
    receiver = transport.sample_receiver(layouts.record.schema)
    publisher = transport.parameter_publisher("main", layouts.params.schema)
    state = jax.jit(lambda: ALGORITHM.init(jax.random.key(0), ENV.spec, EXPERIMENT.hyper()))()
    fragment = layouts.record.tree(layouts.record.schema.fields).fragment
    store = jax.jit(lambda: learning.init(ALGORITHM, fragment))()
    first, key = Version(0, 0), jax.random.key(1)
    ends = receiver, publisher, LearnerAccount(None)
    learner = Learner(
        ALGORITHM, layouts, state, store, key, first, *ends, slots=1, schedule=make_schedule(1), beat=beat
    )
    learner.publish()
    learner.warm_up()

    def learn() -> Learned | None:
        with closing(transport.sample_sender(receiver.endpoint, layouts.record.schema, SenderId(0, 0), 1)) as sender:
            buffer = sender.acquire(10.0)
            assert buffer is not None
            layouts.record.tree(buffer.arrays).fragment.valid[...] = True
            sender.commit(buffer, FragmentHeader(0, 0, first, 16, 16))
            with learner:
                return learner.step(10.0)

    return learn


@pytest.mark.parametrize("make", [fused, with_workers])
def test_the_first_round_compiles_nothing(make: Callable[[], Callable[[], object]]) -> None:
    run = make()
    with compilations() as compiled:
        assert run() is not None
    assert compiled == []


def test_many_updates_are_made_in_parts_with_a_sign_of_life_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, beats = {}, []
    for part in (64, 5):
        monkeypatch.setattr("podium.workers.learner.ROUND", part)
        beats.append(0)

        def beat() -> None:
            beats[-1] += 1

        learned = with_workers(beat)()
        assert learned is not None
        metrics[part] = learned.metrics
    assert beats == [1, 4]  # of 16 updates
    assert metrics[5]["gradient_updates"] == 16
    assert {name: float(x) for name, x in metrics[5].items()} == {name: float(x) for name, x in metrics[64].items()}
