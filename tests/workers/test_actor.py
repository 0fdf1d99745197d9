"""The actor sends the canonical layout, whole across fragments and slots, and counts every step."""

import jax
import numpy as np
import pytest

from podium.core.config import NetworkConfig
from podium.core.errors import EnvError, RefusedError
from podium.envs.interface import HostEnv, TimeStep
from podium.networks import network as networks
from podium.protocol.schema import SenderId, Version
from workers.stage import LENGTH, ROWS, Counter, Stage, assert_same, play


class Hooked(HostEnv):
    """Calls `hook(n)` inside the n-th step, and is otherwise the environment around which it is."""

    def __init__(self, env: HostEnv, hook, steps_in_send: bool = True) -> None:
        self.env, self.hook, self.steps_in_send = env, hook, steps_in_send
        self.spec, self.num_envs, self.count = env.spec, env.num_envs, 0

    def reset(self) -> TimeStep:
        return self.env.reset()

    def send(self, actions: np.ndarray) -> None:
        self.count += 1
        self.hook(self.count)
        self.env.send(actions)

    def recv(self) -> TimeStep:
        return self.env.recv()

    def close(self) -> None:
        self.env.close()


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_fragments_hold_the_canonical_layout(slots, end):
    # As many credits as slots: the second fragment is written over the first.
    with Stage(slots, lambda: Counter(end), credits=slots) as stage:
        stage.publish(0)
        sent = stage.receive_released(2 * slots)
    for slot in range(slots):
        (head_one, (one, ended_one), _), (head_two, (two, ended_two), _) = [s for s in sent if s.header.slot == slot]
        # 0 1 2 (3, the final observation) 0 1 2 (3) ...: the final one is seen in a reset row.
        np.testing.assert_array_equal(one.obs[:, 0, 0], [0, 1, 2, 3, 0, 1])
        np.testing.assert_array_equal(two.obs[:, 0, 0], [1, 2, 3, 0, 1, 2])
        np.testing.assert_array_equal(one.reward[:, 0], [1, 2, 3, 0, 1])
        np.testing.assert_array_equal(one.valid[:, 0], [True, True, True, False, True])
        np.testing.assert_array_equal(two.valid[:, 0], [True, True, False, True, True])
        np.testing.assert_array_equal(one.first[:, 0], [True, False, False, False, True, False])
        np.testing.assert_array_equal(two.first[:, 0], [False, False, False, True, False, False])
        over, other = (one.terminated, one.truncated) if end == "terminated" else (one.truncated, one.terminated)
        np.testing.assert_array_equal(over[:, 0], [False, False, True, False, False])
        assert not other.any()
        np.testing.assert_allclose(one.discounted[[0, 1, 2, 4], 0], [1, 2.5, 4.25, 1])
        np.testing.assert_array_equal(ended_one.lengths[:, 0], [0, 0, 3, 0, 0])
        np.testing.assert_array_equal(ended_one.returns[:, 0], [0, 0, 6, 0, 0])
        np.testing.assert_array_equal(ended_two.lengths[:, 0], [0, 3, 0, 0, 0])
        np.testing.assert_array_equal(ended_two.returns[:, 0], [0, 6, 0, 0, 0])
        for fragment in (one, two):
            assert all(np.array_equal(fragment.obs[:, 0], fragment.obs[:, row]) for row in range(ROWS // slots))
        assert head_one.steps == head_two.steps == 4 * ROWS // slots
    assert [s.header.sequence for s in sent] == list(range(2 * slots))
    assert [s.header.produced for s in sent] == [4 * ROWS // slots * (n + 1) for n in range(2 * slots)]
    assert {s.header.version for s in sent} == {Version(0, 0)}


@pytest.mark.parametrize(
    ("env", "memory", "slots", "staleness"),
    [
        ("Catch-v0", "none", 1, 0),
        ("Memory-v0", "gru", 2, 0),
        ("Memory-v0", "gru", 2, 1),
        ("Masked-v0", "none", 1, 1),
        ("Target-v0", "none", 2, 1),
    ],
)
def test_fragments_are_those_of_a_plain_loop(env, memory, slots, staleness):
    with Stage(slots, f"podium:{env}", staleness, memory=memory) as stage:
        sent = []
        for update in range(3):
            stage.publish(update)
            sent += [stage.receive() for _ in range(slots)]
            for one in sent[-slots:]:
                one.release()
    for slot in range(slots):
        fragments = [s.record for s in sent if s.header.slot == slot]
        for record, told in zip(fragments, play(stage, slot, range(3), [0] * 3), strict=True):
            assert_same(record, told)
    assert memory == "none" or np.any(fragments[-1].fragment.memory != 0)


def test_log_probabilities_are_those_of_the_parameters_that_acted_and_memory_starts_the_fragment():
    with Stage(2, memory="gru") as stage:
        stage.publish(0)
        sent = stage.receive_released(6)
    network = networks.make(NetworkConfig(hidden=(4,), memory="gru", memory_size=4), stage.spec, 2)
    for _, (fragment, _), _ in sent:
        outputs, _, _ = network.apply(stage.params().network, fragment.memory, fragment.obs, fragment.first)
        log_probs = jax.nn.log_softmax(outputs)[:-1]
        chosen = np.take_along_axis(np.asarray(log_probs), fragment.action[..., None], -1)[..., 0]
        np.testing.assert_allclose(chosen, fragment.extras["log_prob"], rtol=1e-5)
    assert np.any(sent[-1].record.fragment.memory != 0)


def test_slots_change_nothing_but_the_last_bits():
    played = []
    for slots in (1, 2, 4):
        with Stage(slots, "podium:Catch-v0") as stage:
            stage.publish(0)
            sent = sorted(stage.receive_released(slots), key=lambda s: s.header.slot)
        assert [s.header.slot for s in sent] == list(range(slots))
        played.append(jax.tree.map(lambda *x: np.concatenate(x, 1), *(s.record for s in sent)))
    for other in played[1:]:
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), played[0], other)
        np.testing.assert_array_equal(played[0].fragment.action, other.fragment.action)


def test_a_first_fragment_number_is_the_callers():
    with Stage(env="podium:Catch-v0", fragment=7) as stage:
        stage.publish(3)
        records = [sent.record for sent in stage.receive_released(2)]
    for record, told in zip(records, play(stage, 0, [7, 8], [0, 0]), strict=True):
        assert_same(record, told)
        assert (record.fragment.version == 3).all()


@pytest.mark.parametrize("slots", [1, 2])
def test_at_staleness_0_a_fragment_begins_with_a_newer_version_and_is_numbered_by_it(slots):
    with Stage(slots, "podium:Catch-v0", staleness=0, credits=2 * slots) as stage:
        stage.publish(0)
        sent = [stage.receive() for _ in range(slots)]
        # There is credit, but version 0 has been used.
        stage.wait_until_it_waits()
        produced = stage.actor_account.produced
        assert produced == sum(s.header.steps for s in sent)
        # A restored learner: newer, though its update number is not the next.
        stage.publish(5, incarnation=1, seed=3)
        sent += [stage.receive() for _ in range(slots)]
        # Now there is a version, but no credit.
        stage.publish(6, incarnation=1, seed=4)
        stage.wait_until_it_waits()
        assert stage.actor_account.fragments == 2 * slots
        for one in sent[:slots]:
            one.release()
        sent += [stage.receive() for _ in range(slots)]
    for slot in range(slots):
        own = [s for s in sent if s.header.slot == slot]
        assert [s.header.version for s in own] == [Version(0, 0), Version(1, 5), Version(1, 6)]
        for one, told in zip(own, play(stage, slot, [0, 5, 6], [0, 3, 4]), strict=True):
            assert_same(one.record, told)
            assert (one.record.fragment.version == one.header.version.update).all()


def test_at_staleness_0_a_fragment_is_of_one_version_though_a_newer_one_comes_in_its_middle():
    def publish(step: int) -> None:
        if step == 3:
            stage.publish(2, incarnation=1, seed=5)

    with Stage(staleness=0, wrap=lambda _, env: Hooked(env, publish)) as stage:
        stage.publish(0)
        one, two = stage.receive_released(2)
    assert (one.header.version, two.header.version) == (Version(0, 0), Version(1, 2))
    for sent, told in zip((one, two), play(stage, 0, [0, 2], [0, 5]), strict=True):
        assert_same(sent.record, told)
        assert (sent.record.fragment.version == sent.header.version.update).all()


def test_with_staleness_each_step_has_its_own_version_and_the_header_the_oldest():
    def publish(step: int) -> None:
        if step == 3:
            stage.publish(1, seed=5)

    with Stage(wrap=lambda _, env: Hooked(env, publish)) as stage:
        stage.publish(0)
        one, two = stage.receive_released(2)
    np.testing.assert_array_equal(one.record.fragment.version[:, 0], [0, 0, 0, 1, 1])
    assert (two.record.fragment.version == 1).all()
    assert (one.header.version, two.header.version) == (Version(0, 0), Version(0, 1))


@pytest.mark.parametrize(("slots", "staleness"), [(1, 1), (2, 1), (4, 2)])
def test_without_credit_the_actor_waits_and_goes_on_after_a_release(slots, staleness):
    credits = slots * (staleness + 1)
    with Stage(slots, staleness=staleness) as stage:
        stage.publish(0)
        sent = [stage.receive() for _ in range(credits)]
        stage.wait_until_it_waits()
        assert stage.actor_account.fragments == credits
        assert stage.actor_account.produced == sent[-1].header.produced
        sent[1].release()
        later = stage.receive()
        assert later.header.sequence == credits
        stage.wait_until_it_waits()
        assert stage.actor_account.fragments == credits + 1
        assert stage.actor.metrics()["credit_wait_s"] > 0
    counts = [sum(s.header.slot == slot for s in [*sent, later]) for slot in range(slots)]
    assert max(counts) - min(counts) <= 1, "no slot runs away from the others"


def test_stopping_counts_what_is_unfinished_in_the_arrays():
    # The second fragment is written over the first, which had four valid steps of each row.
    def stop(step: int) -> None:
        if step == LENGTH + 3:
            stage.stop.set()

    with Stage(credits=1, wrap=lambda _, env: Hooked(env, stop)) as stage:
        stage.publish(0)
        (whole,) = stage.receive_released(1)
        stage.join()
    # 1 2 3 reset 1 | 2 3 reset: so the two steps of the second fragment that were valid, of each row.
    assert (whole.header.steps, stage.actor_account.unfinished, stage.actor_account.produced) == (
        4 * ROWS,
        2 * ROWS,
        6 * ROWS,
    )
    assert stage.actor_account.ended
    assert stage.actor_account.steps_of(0) == 4 * ROWS


def test_a_step_that_was_not_received_is_neither_produced_nor_unfinished():
    def stop(step: int) -> None:
        if step == 2:
            stage.stop.set()

    with Stage(2, wrap=lambda slot, env: Hooked(env, stop if slot == 1 else lambda _: None, False)) as stage:
        stage.publish(0)
        stage.join()
    assert stage.actor_account.produced == stage.actor_account.unfinished > 0


def test_an_error_of_an_environment_ends_the_actor():
    class Broken(Counter):
        def step(self, action):
            if self.count == 1:
                raise ZeroDivisionError("the wheel came off")
            return super().step(action)

    stage = Stage(env=Broken)
    stage.publish(0)
    with pytest.raises(EnvError, match=r"(?s)environment 0 \(seed 0\).*the wheel came off"), stage:
        stage.join()
    assert stage.actor_account.unfinished == stage.actor_account.produced == ROWS


def test_an_actor_that_was_taken_for_dead_is_told_so():
    stage = Stage()
    stage.transport.sample_sender(stage.receiver.endpoint, stage.layouts.record.schema, SenderId(0, 1), 1)
    with pytest.raises(RefusedError, match="was replaced by incarnation 1"), stage:
        stage.join()


def test_metrics_are_beaten_out_while_it_waits():
    with Stage(2) as stage:
        stage.publish(0)
        for _ in range(4):
            stage.receive()
        while not stage.beats:
            stage.wait_until_it_waits()
        metrics = stage.actor.metrics()
    assert stage.beats[0].keys() == metrics.keys()
    assert (metrics["steps"], metrics["fragments"]) == (stage.actor_account.produced, 4)
    assert metrics["env_s"] > 0
    assert metrics["inference_wait_s"] > 0
    assert metrics["weights_age_s"] > 0
