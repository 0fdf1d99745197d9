"""A wrong program fails before anything has started, with one line; a right one can be drawn."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from podium.core.errors import ConfigError
from podium.orchestrator.drawing import draw
from podium.orchestrator.program import Edge, Ends, Group, Program, Resources, check
from podium.protocol.schema import Field, Schema

FRAGMENT = Schema((Field("obs", (129, 16, 4), "float32"), Field("reward", (128, 16), "float32")))
SHORTER = Schema((Field("obs", (129, 8, 4), "float32"), Field("reward", (128, 16), "float32")))
ROW = Schema((Field("obs", (4,), "float32"),))
ACTION = Schema((Field("action", (), "int32"),))

SERVED = Program(
    groups=(
        Group("learner", 1, "podium.workers.learner:run", resources=Resources(cpus=2, threads=2, memory_mb=4096)),
        Group("actor", 4, "podium.workers.actor:run", {"env": "CartPole-v1"}, Resources(threads=1, pool="small")),
        Group("inference", 2, "podium.workers.inference:run", resources=Resources(0.5, 0.25, platform="gpu")),
        Group("evaluator", 1, "podium.workers.evaluator:run", restart=False),
    ),
    edges=(
        Edge("samples", ("actor",), ("learner",), schema=Ends(FRAGMENT, FRAGMENT), transport="shm"),
        Edge("inference", ("actor",), ("inference",), schema=Ends(ROW, ROW), reply=Ends(ACTION), transport="tcp"),
        Edge("parameters", ("learner",), ("inference", "evaluator")),
    ),
)
DRAWING = """\
workers
  learner    x1  cpu  2 cpus, 4096 MB, 2 threads   podium.workers.learner:run
  actor      x4  cpu  1 cpu, 1 thread, pool small  podium.workers.actor:run
  inference  x2  gpu  0.5 cpus, 0.25 gpus          podium.workers.inference:run
  evaluator  x1  cpu  1 cpu, not restarted         podium.workers.evaluator:run
streams
  actor    ──▶  learner               samples     main  shm   obs float32[129, 16, 4], reward float32[128, 16]
  actor    ◀─▶  inference             inference   main  tcp   obs float32[4] ▷ action int32[]
  learner  ──▶  inference, evaluator  parameters  main  auto
"""


def test_a_right_program_passes_without_a_word() -> None:
    assert check(SERVED, machine_cpus=8) == []
    assert SERVED.binders == {"learner", "inference"}
    assert SERVED.peers("actor") == ["inference", "learner"]
    assert SERVED.peers("learner") == ["actor", "evaluator", "inference"]
    assert check(Program((Group("learner", 1, "m:f"),), ())) == []  # a single group needs nobody


def test_samples_may_be_sharded_over_the_receivers_of_one_group() -> None:
    sharded = reconnect(0, receivers=("inference",), sharded=True)(SERVED)
    assert check(sharded) == []
    with pytest.raises(ConfigError, match="samples have one receiver"):
        check(reconnect(0, receivers=("inference", "learner"), sharded=True)(SERVED))


def test_more_cpus_than_there_are_is_a_warning() -> None:
    assert check(SERVED, machine_cpus=2) == [
        "the program asks for 8 cpus, this machine has 2: workers share them",
    ]


def test_the_drawing_shows_workers_streams_transports_and_shapes() -> None:
    assert draw(SERVED) == DRAWING
    assert draw(Program((Group("learner", 1, "m:f"),), ())) == "workers\n  learner  x1  cpu  1 cpu  m:f\n"


def regroup(**changes: object) -> Callable[[Program], Program]:
    """Change the second group, the actors."""
    return lambda program: replace(
        program, groups=(program.groups[0], replace(program.groups[1], **changes), *program.groups[2:])
    )


def reconnect(number: int, **changes: object) -> Callable[[Program], Program]:
    """Change an edge."""
    return lambda program: replace(
        program,
        edges=tuple(replace(edge, **changes) if i == number else edge for i, edge in enumerate(program.edges)),
    )


def add(*edges: Edge) -> Callable[[Program], Program]:
    """Add edges."""
    return lambda program: replace(program, edges=(*program.edges, *edges))


SAMPLES = "edge samples of policy 'main' from actor to learner"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda program: Program((), ()), "the program has no groups: nothing would run"),
        (regroup(role="learner"), "group 'learner': 2 groups have this role; roles must differ"),
        (regroup(count=0), "group 'actor': count = 0: must be at least 1"),
        (regroup(entry="act"), "group 'actor': entry = 'act': must be a Python path like 'my_module:function'"),
        (
            regroup(payload={"key": b"bytes"}),
            "group 'actor': the payload cannot be written as JSON: Object of type bytes is not JSON serializable",
        ),
        (
            regroup(payload={"x": "y" * 50_000}),
            "group 'actor': a payload of 50009 bytes: at most 49152; write it to a file and give its path",
        ),
        (
            regroup(resources=Resources(platform="tpu")),  # pyright: ignore[reportArgumentType]
            "group 'actor': resources.platform = 'tpu': must be 'cpu' or 'gpu'",
        ),
        (regroup(resources=Resources(cpus=-1)), "group 'actor': resources.cpus = -1: must be 0 or more"),
        (regroup(resources=Resources(gpus=-0.5)), "group 'actor': resources.gpus = -0.5: must be 0 or more"),
        (regroup(resources=Resources(threads=0)), "group 'actor': resources.threads = 0: must be at least 1"),
        (regroup(resources=Resources(memory_mb=0)), "group 'actor': resources.memory_mb = 0: must be at least 1"),
        (
            lambda program: replace(program, groups=(*program.groups, Group("replay", 1, "m:f"))),
            "group 'replay': no edge begins or ends there; connect it, or leave it out",
        ),
        (
            reconnect(0, receivers=("lerner",)),
            "edge samples of policy 'main' from actor to lerner: there is no group 'lerner'; did you mean 'learner'?",
        ),
        (
            reconnect(0, receivers=("x",)),
            "edge samples of policy 'main' from actor to x: there is no group 'x'; "
            "there are learner and actor and inference and evaluator",
        ),
        (reconnect(0, senders=()), "edge samples of policy 'main' from  to learner: has no senders"),
        (
            reconnect(0, stream="gradients"),
            "edge gradients of policy 'main' from actor to learner: there is no stream 'gradients'; "
            "must be one of samples, inference, parameters",
        ),
        (
            reconnect(0, schema=Ends(FRAGMENT, SHORTER)),
            f"{SAMPLES}: its ends disagree on the arrays: "
            "obs float32[129, 16, 4] against obs float32[129, 8, 4] (sender against receiver)",
        ),
        (
            reconnect(1, reply=Ends(ACTION, ROW)),
            "edge inference of policy 'main' from actor to inference: its ends disagree on the reply arrays: "
            "action int32[] against obs float32[4] (sender against receiver)",
        ),
        (
            reconnect(0, receivers=("inference",)),
            "edge samples of policy 'main' from actor to inference: samples have one receiver, not 2 x inference",
        ),
        (
            reconnect(0, receivers=("learner", "evaluator")),
            "edge samples of policy 'main' from actor to learner and evaluator: "
            "samples have one receiver, not 1 x learner and 1 x evaluator",
        ),
        (
            add(Edge("samples", ("actor",), ("evaluator",))),
            "edge samples of policy 'main' from actor to evaluator: "
            "actor has another edge for these samples; they can go one way only",
        ),
        (
            add(Edge("parameters", ("evaluator",), ("actor",))),
            "parameters of policy 'main' have one writer, not 1 x evaluator and 1 x learner",
        ),
        (
            add(Edge("parameters", ("actor",), ("learner",), policy="rival")),
            "parameters of policy 'rival' have one writer, not 4 x actor",
        ),
    ],
)
def test_a_wrong_program_is_refused_with_one_line(change: Callable[[Program], Program], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check(change(SERVED))
    assert str(refused.value) == line
