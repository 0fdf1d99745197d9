"""What is to be run: groups of workers and the streams between them. A value: building it starts nothing.

program = Program(
    groups=(Group("learner", 1, "my_module:learn"), Group("actor", 4, "my_module:act", {"env": "CartPole-v1"})),
    edges=(Edge("samples", ("actor",), ("learner",)), Edge("parameters", ("learner",), ("actor",))),
)
warnings = check(program, machine_cpus=8)        # a wrong program raises ConfigError before anything has started
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

from podium.core.errors import ConfigError
from podium.core.imports import is_python_path, suggest
from podium.protocol.schema import Schema

Platform = Literal["cpu", "gpu"]
Stream = Literal["samples", "inference", "parameters"]

PAYLOAD_BYTES = 48 * 1024  # a worker is told its payload through a pipe, which holds this much before anybody reads


@dataclass(frozen=True)
class Resources:
    """What one worker asks for. `threads` is how many its computations may use, `pool` names machines of a cluster."""

    cpus: float = 1
    gpus: float = 0
    memory_mb: int | None = None
    platform: Platform = "cpu"
    threads: int | None = None
    pool: str | None = None


@dataclass(frozen=True)
class Group:
    """Workers of one role: `count` of them call the function `entry` names, each with the same JSON-able payload."""

    role: str
    count: int
    entry: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    resources: Resources = Resources()
    restart: bool = True


class Ends(NamedTuple):
    """What each end of an edge takes a record to be; None where that is known only later."""

    sender: Schema | None = None
    receiver: Schema | None = None


UNKNOWN = Ends()


@dataclass(frozen=True)
class Edge:
    """A stream from all workers of the sending roles to all of the receiving ones.

    `sharded`: sender i sends to receiver i modulo their count only. Senders divide `slots` among them (`share`). Each
    slot may have `credits` fragments out, or one request of `rows` rows, which fails after `limit_s` seconds.
    """

    stream: Stream
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    policy: str = "main"
    schema: Ends = UNKNOWN
    reply: Ends = UNKNOWN  # of an inference edge: what comes back, from its receivers
    transport: str = "auto"
    sharded: bool = False
    slots: int = 1
    credits: int = 1
    rows: int = 1
    limit_s: float = 10.0

    @property
    def binders(self) -> tuple[str, ...]:
        """The roles that others connect to."""
        return self.senders if self.stream == "parameters" else self.receivers

    def __str__(self) -> str:
        return f"{self.stream} of policy {self.policy!r} from {_join(self.senders)} to {_join(self.receivers)}"


def share(slots: int, workers: int, index: int) -> range:
    """The slots of one of several workers, as equal as can be.

    >>> [list(share(8, 3, index)) for index in range(3)]
    [[0, 1], [2, 3, 4], [5, 6, 7]]
    """
    return range(index * slots // workers, (index + 1) * slots // workers)


@dataclass(frozen=True)
class Program:
    """All groups of a run and all edges between them."""

    groups: tuple[Group, ...]
    edges: tuple[Edge, ...]

    @property
    def binders(self) -> frozenset[str]:
        """Roles that others connect to, and that therefore need the run's server key."""
        return frozenset(role for edge in self.edges for role in edge.binders)

    @property
    def cpus(self) -> float:
        """What all workers ask for together."""
        return sum(group.count * group.resources.cpus for group in self.groups)

    def peers(self, role: str) -> list[str]:
        """Roles at the other ends of its edges: those that a worker of it has to find."""
        ends = [(edge.senders, edge.receivers) for edge in self.edges]
        found = {peer for mine, theirs in (*ends, *((b, a) for a, b in ends)) if role in mine for peer in theirs}
        return sorted(found)

    def group(self, role: str) -> Group:
        """The group of a role that the program has."""
        return next(group for group in self.groups if group.role == role)


def check(program: Program, machine_cpus: int | None = None) -> list[str]:
    """Raise ConfigError, in one line, for a program that cannot run; return warnings for one that may run badly."""
    # Lazily, and in this order: each may rely on what the ones before have found right.
    for error in chain(_group_errors(program), _edge_errors(program), _stream_errors(program)):
        raise ConfigError(error)
    if machine_cpus is not None and program.cpus > machine_cpus:
        return [f"the program asks for {program.cpus:g} cpus, this machine has {machine_cpus}: workers share them"]
    return []


def _group_errors(program: Program) -> Iterator[str]:
    if not program.groups:
        yield "the program has no groups: nothing would run"
    roles = [group.role for group in program.groups]
    joined = {role for edge in program.edges for role in (*edge.senders, *edge.receivers)}
    for group in program.groups:
        if roles.count(group.role) > 1:
            yield f"group {group.role!r}: {roles.count(group.role)} groups have this role; roles must differ"
        if group.count < 1:
            yield f"group {group.role!r}: count = {group.count}: must be at least 1"
        if not is_python_path(group.entry):
            yield f"group {group.role!r}: entry = {group.entry!r}: must be a Python path like 'my_module:function'"
        yield from _resource_errors(group)
        yield from _payload_errors(group)
        if group.role not in joined and len(program.groups) > 1:
            yield f"group {group.role!r}: no edge begins or ends there; connect it, or leave it out"


def _resource_errors(group: Group) -> Iterator[str]:
    asked = group.resources
    where = f"group {group.role!r}: resources."
    if asked.platform not in get_args(Platform):
        yield f"{where}platform = {asked.platform!r}: must be 'cpu' or 'gpu'"
    if asked.cpus < 0:
        yield f"{where}cpus = {asked.cpus:g}: must be 0 or more"
    if asked.gpus < 0:
        yield f"{where}gpus = {asked.gpus:g}: must be 0 or more"
    if asked.threads is not None and asked.threads < 1:
        yield f"{where}threads = {asked.threads}: must be at least 1"
    if asked.memory_mb is not None and asked.memory_mb < 1:
        yield f"{where}memory_mb = {asked.memory_mb}: must be at least 1"


def _payload_errors(group: Group) -> Iterator[str]:
    try:
        size = len(json.dumps(dict(group.payload), allow_nan=False))
    except (TypeError, ValueError) as error:
        yield f"group {group.role!r}: the payload cannot be written as JSON: {error}"
    else:
        if size > PAYLOAD_BYTES:
            yield (
                f"group {group.role!r}: a payload of {size} bytes: at most {PAYLOAD_BYTES}; "
                "write it to a file and give its path"
            )


def _edge_errors(program: Program) -> Iterator[str]:
    roles = [group.role for group in program.groups]
    for edge in program.edges:
        if edge.stream not in get_args(Stream):
            yield f"edge {edge}: there is no stream {edge.stream!r}; must be one of {', '.join(get_args(Stream))}"
        for side, ends in (("senders", edge.senders), ("receivers", edge.receivers)):
            if not ends:
                yield f"edge {edge}: has no {side}"
            for role in ends:
                if role not in roles:
                    hint = suggest(role, roles) or f"; there are {_join(roles)}"
                    yield f"edge {edge}: there is no group {role!r}{hint}"
        for what, (sender, receiver) in (("", edge.schema), ("reply ", edge.reply)):
            if sender and receiver and (difference := sender.difference(receiver)):
                yield f"edge {edge}: its ends disagree on the {what}arrays: {difference} (sender against receiver)"


def _stream_errors(program: Program) -> Iterator[str]:
    """Who may be one only: the writer of a policy, and the receiver of samples."""
    samples: set[tuple[str, str]] = set()
    writers: dict[str, set[str]] = {}
    for edge in program.edges:
        if edge.stream == "samples":
            counts = {role: program.group(role).count for role in edge.receivers}
            if list(counts.values()) != [1] and not (edge.sharded and len(counts) == 1):
                yield f"edge {edge}: samples have one receiver, not {_counted(counts)}"
            for role in edge.senders:
                if (role, edge.policy) in samples:
                    yield f"edge {edge}: {role} has another edge for these samples; they can go one way only"
                samples.add((role, edge.policy))
        if edge.stream == "parameters":
            writers.setdefault(edge.policy, set()).update(edge.senders)
    for policy, roles in writers.items():
        counts = {role: program.group(role).count for role in sorted(roles)}
        if list(counts.values()) != [1]:
            yield f"parameters of policy {policy!r} have one writer, not {_counted(counts)}"


def _counted(counts: Mapping[str, int]) -> str:
    return _join([f"{count} x {role}" for role, count in counts.items()]) or "none"


def _join(names: list[str] | tuple[str, ...]) -> str:
    return " and ".join(names)
