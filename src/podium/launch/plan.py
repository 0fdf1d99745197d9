"""What a run will do, worked out before anything starts: `podium train --dry-run` prints it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import jax

from podium.algorithms import learning
from podium.algorithms import registry as algorithms
from podium.algorithms.algorithm import Algorithm, Individuals, Replay
from podium.algorithms.collectives import ROWS_PER_CORE
from podium.core import toml
from podium.core.config import Experiment, TopologyConfig
from podium.core.errors import ConfigError
from podium.core.specs import EnvSpec
from podium.core.transports import MEMORY, SHM, TRANSPORTS, TransportName, between_hosts, between_processes, others
from podium.envs import registry as envs
from podium.envs.registry import ResolvedEnv
from podium.launch import populations, replay_keeper, shared_memory
from podium.launch.devices import configure
from podium.launch.names import are_known_everywhere, is_importable, names_of_this_program
from podium.launch.program import draw_program
from podium.workers.fused import iterations_per_dispatch
from podium.workers.individual_records import BATCHES
from podium.workers.schedule import Schedule, make_schedule

Mode = Literal["fused", "inline", "served"]
FUSED = "the environment is a JAX function"


class Choices(NamedTuple):
    """What the launcher chose and an experiment does not say: workers are told."""

    library: str
    devices: int


@dataclass(frozen=True)
class Plan:
    """An experiment with every open choice made."""

    experiment: Experiment
    env: ResolvedEnv
    algorithm: Algorithm
    mode: Mode
    actors: int
    slots: int
    transport: TransportName
    devices: int
    notes: tuple[str, ...]
    asked: TopologyConfig | None = None
    """What the user said, where it leaves open what `calibration.settle` will measure; None: nothing is open."""
    importable: bool = True
    """Whether other processes find the environment by its name."""

    @property
    def choices(self) -> Choices:
        """What `rebuild_plan` needs beside the experiment."""
        return Choices(self.env.library, self.devices)

    @property
    def in_one_process(self) -> bool:
        """Whether all workers are threads of one process, and need no orchestrator."""
        return TRANSPORTS[self.transport].reach == "process"

    @property
    def replay(self) -> Replay:
        """The experience of an off-policy algorithm."""
        assert isinstance(self.algorithm.experience, Replay)
        return self.algorithm.experience

    @property
    def replay_workers(self) -> int:
        """Who keep the past; 0: the learner does, or nobody."""
        return self.experiment.topology.replay_workers or 0

    @property
    def schedule(self) -> Schedule:
        """How far actors may run ahead of the learner."""
        return make_schedule(self.experiment.topology.staleness, isinstance(self.algorithm.experience, Replay))

    @property
    def credits(self) -> int:
        """Fragments that a slot may have out: one for each version that it may be ahead, several for individuals."""
        return credits_of_slot(self.experiment, self.algorithm)

    @property
    def envs(self) -> int:
        """Environments in each slot."""
        return self.experiment.env.num_envs // self.slots

    @property
    def rows(self) -> int:
        """Rows in each slot."""
        return self.env.spec.rows(self.envs)

    @property
    def num_rows(self) -> int:
        """Rows of all environments."""
        return self.env.spec.rows(self.experiment.env.num_envs)

    @property
    def inference_rows(self) -> int:
        """That an inference worker takes at once. At staleness 0 one slot's: which slots happen to ask at the same time
        depends on the clock, and XLA's rows change in the last bit with the batch's size.
        """
        return self.rows if self.schedule.in_turns else self.experiment.topology.inference_batch or self.num_rows


def make_plan(
    experiment: Experiment,
    env_factory: Callable | None = None,
    notes: tuple[str, ...] = (),
    learns: bool = True,
    on_cluster: bool = False,
) -> Plan:
    """Resolve environment, algorithm and mode; whatever cannot work raises ConfigError here.

    What only acts keeps no experience, and need not have the memory for it. `on_cluster` says whether workers may be on
    several hosts.
    """
    configure(experiment)
    env = envs.resolve(experiment.env, env_factory)
    algorithm = algorithms.make(experiment, env.spec)
    mode, why = _choose_mode(experiment, env)
    notes = (*notes, env.note, *algorithm.notes)
    experience, importable = algorithm.experience, env_factory is None or is_importable(experiment, env_factory)
    if isinstance(experience, Individuals):
        populations.check(experiment, experience, mode)
    devices, workers = 1, experiment.topology.replay_workers or 0
    if mode == "fused":
        if on_cluster:
            raise ConfigError(
                "--on: a fused run is one process; leave --on out, or spread it with --set topology.mode=inline"
            )
        _refuse_workers(experiment)
        devices = _choose_devices(experiment, algorithm, env.spec)
    if isinstance(experience, Replay):
        learning.updates_per_fragment(experience, experience.length * env.spec.rows(experiment.env.num_envs))
        if experience.starts >= (total := experiment.limits.total_steps):
            starts = (
                f"algorithm.learning_starts = {experience.starts:,} is not less than limits.total_steps = {total:,}"
            )
            notes = (*notes, f"nothing will be learned: {starts}")
        if learns:
            may_leave = importable and are_known_everywhere(experiment, env)
            workers, kept = replay_keeper.choose(experiment, algorithm, env.spec, devices, may_leave)
            notes = (*notes, kept)
        if workers and algorithm.observe is not None:
            raise ConfigError(
                "algorithm.normalize_observations = true: with replay workers, the learner does not see what goes into "
                "the buffer; use topology.replay_workers=0, with an algorithm.buffer_size that fits, or false"
            )
    topology = replace(experiment.topology, replay_workers=workers)
    if mode == "fused" and not workers:
        experiment = replace(experiment, topology=replace(topology, mode=mode, devices=devices))
        return Plan(experiment, env, algorithm, mode, 1, 1, MEMORY.name, devices, (*notes, f"mode {mode}: {why}"))
    if mode == "fused":
        mode, why = "inline", "a fused run has no replay workers"
    experiment, actors = replace(experiment, topology=topology), topology.actors or max(1, workers)
    slots = _choose_slots(experiment, mode, actors)
    transport = _choose_transport(experiment, mode, actors, on_cluster)
    if learns:
        credits = credits_of_slot(experiment, algorithm)
        transport, moved = shared_memory.find_room(experiment, algorithm, env.spec, slots, credits, transport)
        notes = (*notes, *moved)
    check_requests(mode, env.spec.rows(experiment.env.num_envs), slots, transport)
    if workers and learns:
        replay_keeper.check_workers(experiment, algorithm, env.spec, actors, slots, transport)
    if transport != MEMORY.name and (lost := names_of_this_program(experiment)):
        raise ConfigError(
            f"{lost[0]}: is of this script or notebook, and workers in other processes cannot import it; put it in a "
            "module, or use topology.transport=memory"
        )
    if transport != MEMORY.name and not importable:
        raise ConfigError(
            f"env = {experiment.env.id}: actors in other processes cannot import it; put it in a module and name it "
            "my_module:make_env, or use topology.transport=memory"
        )
    asked = topology if not on_cluster and _is_open(experiment) else None
    topology = replace(topology, mode=mode, actors=actors, slots=slots, transport=transport)
    experiment, notes = replace(experiment, topology=topology), (*notes, f"mode {mode}: {why}")
    if slots % actors:
        most = -(-slots // actors) * experiment.env.num_envs // slots
        notes = (*notes, f"{actors} actors do not divide {experiment.env.num_envs} environments: each has up to {most}")
    shared = populations.learner_devices(experience) if isinstance(experience, Individuals) else 1
    return Plan(experiment, env, algorithm, mode, actors, slots, transport, shared, notes, asked, importable)


def credits_of_slot(experiment: Experiment, algorithm: Algorithm) -> int:
    """Fragments that a slot may have out."""
    experience = algorithm.experience
    schedule = make_schedule(experiment.topology.staleness, isinstance(experience, Replay))
    return schedule.credits(1, BATCHES if isinstance(experience, Individuals) else 1)


def check_requests(mode: Mode, rows: int, slots: int, transport: TransportName) -> None:
    """Refuse slots whose rows do not fit into one request for actions."""
    if mode == "served" and rows // slots > (most := TRANSPORTS[transport].most_rows):
        raise ConfigError(
            f"topology.slots = {slots}: over {transport}, a slot has at most {most:,} of the "
            f"{rows:,} environments' rows; use more slots, or topology.transport={SHM.name}"
        )


def rebuild_plan(experiment: Experiment, choices: Sequence[Any]) -> Plan:
    """A plan again in another process, from the experiment of one that was made. It chooses and measures nothing.

    Raises ConfigError where this host cannot do what was chosen.
    """
    configure(experiment)
    library, devices = Choices(*choices)
    env, topology = envs.resolve(experiment.env), experiment.topology
    if env.library != library:
        raise ConfigError(
            f"env.id = {experiment.env.id!r}: the run steps it with {library}, this host would with {env.library}; "
            f"install {library} here too"
        )
    algorithm = algorithms.make(experiment, env.spec)
    mode, transport = cast(Mode, topology.mode), cast(TransportName, topology.transport)
    return Plan(experiment, env, algorithm, mode, topology.actors or 1, topology.slots or 1, transport, devices, ())


def _is_open(experiment: Experiment) -> bool:
    """Whether it is to be measured who steps the environments.

    Not with staleness 0, which is deterministic: placement by the clock would change the last bits from run to run.
    Not if the user gave the environments processes of their own, or asked for workers that actors send to.
    """
    topology = experiment.topology
    auto = topology.mode == "auto" and topology.actors is None and not make_schedule(topology.staleness).in_turns
    return auto and experiment.env.processes == 0 and not topology.replay_workers


def draw(plan: Plan) -> str:
    """The resolved experiment as TOML, then the program as text."""
    experiment, experience = plan.experiment, plan.algorithm.experience
    if plan.mode == "fused" and isinstance(experience, Individuals):
        program = populations.draw(experiment, experience, plan.devices)
    elif plan.mode == "fused":
        rows = f"[{plan.algorithm.rollouts.length} x {plan.num_rows}]"
        iterations = iterations_per_dispatch(experiment, plan.algorithm, plan.env.spec)
        program = [
            f"fused   x1   {plan.devices} device(s), {iterations} iteration(s) a dispatch",
            f"  collect {rows} -> update -> collect ... in one XLA program",
        ]
    else:
        program = draw_program(plan).splitlines()
    if plan.asked is not None:
        program.append("auto: who steps the environments is measured when the run starts; this is the simplest")
    return "\n".join([toml.dump(experiment), "# program", *(f"# {line}".rstrip() for line in (*plan.notes, *program))])


def _choose_mode(experiment: Experiment, env: ResolvedEnv) -> tuple[Mode, str]:
    wanted = experiment.topology.mode
    if wanted == "fused" and env.kind != "jax":
        raise ConfigError(
            f"topology.mode = 'fused': {experiment.env.id} is not a JAX environment; use inline, or one of gymnax:"
        )
    if wanted != "auto":
        return wanted, "asked for"
    if experiment.topology.replay_workers:
        return "inline", "replay workers are asked for"
    return ("inline", "the environment runs on the host") if env.kind == "host" else ("fused", FUSED)


def _refuse_workers(experiment: Experiment) -> None:
    """A fused run is one program: it has no actors, and says so."""
    topology = experiment.topology
    for name in ("actors", "slots", "replay_workers"):
        if getattr(topology, name) not in (None, 0 if name == "replay_workers" else 1):
            raise ConfigError(
                f"topology.{name} = {getattr(topology, name)}: a fused run has no actors; add topology.mode=inline"
            )
    if topology.transport not in ("auto", MEMORY.name):
        raise ConfigError(f"topology.transport = {topology.transport!r}: a fused run has no streams; use auto")


def _choose_slots(experiment: Experiment, mode: Mode, actors: int) -> int:
    """One for each actor: EnvPool's are faster in one batch, where choosing actions takes a tenth of a step's time.

    Two where actions are chosen elsewhere, so that one is stepped while the other waits for its actions.
    """
    num_envs, wanted = experiment.env.num_envs, experiment.topology.slots
    whole, name = wanted or num_envs, "env.num_envs" if wanted is None else "topology.slots"
    if num_envs % whole:
        raise ConfigError(f"topology.slots = {wanted}: must divide env.num_envs = {num_envs}")
    if actors > whole:
        raise ConfigError(f"topology.actors = {actors}: must be at most {name} = {whole}")
    if whole % actors and make_schedule(experiment.topology.staleness).in_turns:
        raise ConfigError(
            f"topology.actors = {actors}: must divide {name} = {whole} at topology.staleness = 0, where all wait for "
            "the slowest; use topology.staleness=1 for unequal shares"
        )
    each = actors * (2 if mode == "served" else 1)
    # Where shares cannot be equal, the largest of them sets the pace.
    return wanted or min(
        (n for n in range(actors, num_envs + 1) if num_envs % n == 0),
        key=lambda n: (-(-n // actors) * num_envs // n, abs(n - each)),
    )


def _choose_transport(experiment: Experiment, mode: Mode, actors: int, on_cluster: bool) -> TransportName:
    topology, wanted = experiment.topology, experiment.topology.transport
    processes = topology.evaluators or topology.replay_workers
    if on_cluster and wanted == "auto":
        return between_hosts()
    if on_cluster and TRANSPORTS[wanted].reach != "network":
        raise ConfigError(f"topology.transport = {wanted!r}: does not lead to other hosts; with --on use auto or tcp")
    if wanted == "auto":
        return MEMORY.name if mode == "inline" and actors == 1 and not processes else between_processes()
    kind, where = TRANSPORTS[wanted], f"topology.transport = {wanted!r}:"
    if kind.reach == "process" and processes:
        who = "evaluators" if topology.evaluators else "replay workers"
        raise ConfigError(f"{where} {who} are processes; use {others(kind)}")
    if not kind.available:
        raise ConfigError(f"{where} needs {' or '.join(kind.platforms).title()}; use {others(kind)}")
    return wanted


def _choose_devices(experiment: Experiment, algorithm: Algorithm, spec: EnvSpec) -> int:
    """All accelerators; of the CPU's cores, as many as have a few thousand rows of each minibatch to work on.

    With fewer, meeting to add up gradients takes longer than the second core saves; but one for policy and
    one for value need not meet.
    """
    if isinstance(algorithm.experience, Individuals):
        return populations.choose_devices(experiment, algorithm.experience)
    wanted, available, rollouts = experiment.topology.devices, jax.local_device_count(), algorithm.rollouts
    num_envs = experiment.env.num_envs
    blocks = math.gcd(num_envs, rollouts.blocks(spec.rows(num_envs)))  # a device has whole environments
    if wanted is None:
        if jax.default_backend() == "cpu":
            rows = rollouts.minibatch or experiment.rows_per_update(spec)
            available = min(available, max(rollouts.parts, rows // ROWS_PER_CORE))
        return max(n for n in range(1, available + 1) if blocks % n == 0)
    if wanted > available:
        raise ConfigError(f"topology.devices = {wanted}: this machine has {available}")
    if blocks % wanted:
        raise ConfigError(
            f"topology.devices = {wanted}: must divide {blocks}, the blocks that minibatches are drawn from"
        )
    return wanted
