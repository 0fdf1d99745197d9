"""Ends of streams come from the program's edges, and from nothing else."""

from contextlib import ExitStack
from dataclasses import replace

import pytest

from podium.core.algorithm_configs import PPOConfig
from podium.core.config import EnvConfig, Experiment, TopologyConfig
from podium.launch.plan import make_plan
from podium.launch.program import make_program
from podium.launch.wiring import Wiring
from podium.orchestrator.program import Program
from podium.protocol.directory import Registration
from podium.protocol.memory import MemoryTransport
from podium.protocol.schema import SenderId


@pytest.fixture(scope="module")
def program() -> Program:
    config, env = PPOConfig(fragment_length=4, minibatch_size=16), EnvConfig("gymnasium:CartPole-v1", num_envs=4)
    topology = TopologyConfig(mode="served", actors=2, slots=4, inference_workers=2, transport="shm")
    return make_program(make_plan(Experiment(config, env, topology=topology)))


def test_each_role_gets_the_ends_that_its_edges_name(program: Program) -> None:
    with MemoryTransport() as transport, ExitStack() as stack:
        there: dict[str, list[Registration]] = {}

        def wire(role: str, index: int = 0) -> Wiring:
            return Wiring(program, role, SenderId(index, 0), transport, lambda role, count: there[role], stack)

        learner = wire("learner")
        learner.receive_samples()
        learner.publish_parameters()
        assert set(learner.endpoints) == {"samples", "parameters"}
        there["learner"] = [Registration("learner", 0, 0, "", 0, learner.endpoints, ready=True)]
        servers = [wire("inference", index) for index in range(2)]
        for server in servers:
            server.serve_requests()
            server.read_parameters()
        there["inference"] = [
            Registration("inference", index, 0, "", 0, server.endpoints, ready=True)
            for index, server in enumerate(servers)
        ]
        actor = wire("actor", 1)
        sender, clients = actor.send_samples(), actor.request()
        actor.read_parameters()
        assert len(clients) == 2
        # Two slots, each a fragment ahead of the learner: four buffers, and no fifth.
        assert [sender.acquire(0.0) is not None for _ in range(5)] == [True] * 4 + [False]
        led = [(peer.name, type(end).__name__.removeprefix("Memory")) for peer, end in actor.connections]
        assert led == [
            ("learner-0", "SampleSender"),
            ("inference-0", "InferenceClient"),
            ("inference-1", "InferenceClient"),
            ("learner-0", "ParameterReader"),
        ]


def test_a_worker_gets_no_end_that_the_program_has_no_edge_for(program: Program) -> None:
    without = replace(program, edges=tuple(edge for edge in program.edges if edge.stream != "samples"))
    with MemoryTransport() as transport, ExitStack() as stack:
        actor = Wiring(without, "actor", SenderId(0, 0), transport, lambda role, count: [], stack)
        with pytest.raises(ValueError, match="0 edges with actor among the senders of samples, not 1"):
            actor.send_samples()
        learner = Wiring(program, "learner", SenderId(0, 0), transport, lambda role, count: [], stack)
        assert learner.request() == []
