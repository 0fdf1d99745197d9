"""The configuration tree of an experiment: frozen dataclasses that check themselves.

The docstring under a field is its line in `podium train ALGORITHM --help`.
Auto is None: the key is then left out of TOML, and the run decides and prints what it chose.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from podium.core.algorithm_configs import STEP_SHARE, AlgorithmConfig, PPOConfig
from podium.core.errors import ConfigError
from podium.core.section import Section
from podium.core.transports import TransportName

if TYPE_CHECKING:  # numpy takes longer to import than `--help` may take
    from podium.core.specs import EnvSpec

FORMAT = 1
"""Version of the configuration's shape; a TOML file of another one is refused."""

IS_SUCCESS = "is_success"
"""The metric that is looked for in every environment. Other names must be known to it."""


@dataclass(frozen=True)
class EnvConfig(Section):
    """Which environment, how many, and how they are stepped."""

    SECTION = "env"

    id: str = "CartPole-v1"
    """Gymnasium id, package:ID, LIBRARY:ID (gymnasium, envpool, gymnax, podium), or a path my_module:make_env."""
    num_envs: int = 16
    """How many environments run at once (B)."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment's constructor."""
    wrappers: tuple[str, ...] = ()
    """Applied in order: atari, frame_stack(4), action_repeat(2), time_limit(200), my_module:wrap."""
    processes: int = 0
    """Step Gymnasium environments in this many processes with shared memory (0: in this one, or as auto chooses)."""
    threads: int | None = None
    """EnvPool's threads; None: one a core."""
    packages: tuple[str, ...] = ()
    """Modules that are imported first: those that register environments with Gymnasium."""
    metrics: tuple[str, ...] = (IS_SUCCESS,)
    """Numbers of `info` at an episode's end that are reported as env/NAME, the mean over the episodes of a report."""

    def __post_init__(self) -> None:
        self.require("id", bool(self.id), "an environment's name; `podium envs` lists them")
        self.require("num_envs", self.num_envs >= 1, "at least 1")
        self.require("processes", 0 <= self.processes <= self.num_envs, "between 0 and env.num_envs")
        self.require("threads", self.threads is None or self.threads >= 1, "at least 1")
        self.require("metrics", all(self.metrics), "names of numbers in info, such as is_success")


@dataclass(frozen=True)
class NetworkConfig(Section):
    """The network between observation and action: layers, memory, or a factory of your own."""

    SECTION = "network"

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers (after the convolutions, where the observation is an image)."""
    activation: Literal["tanh", "relu", "swish", "elu"] = "tanh"
    """Between hidden layers."""
    vision: Literal["shallow", "nature", "resnet"] = "nature"
    """Convolutions of images: IMPALA's shallow network (2 of them), the Nature CNN (3), or IMPALA's ResNet (15)."""
    memory: Literal["none", "gru", "lstm"] = "none"
    """A recurrent core after the hidden layers."""
    memory_size: int = 128
    """Width of the recurrent core."""
    factory: str | None = None
    """Python path of your own network, my_module:make_network; see docs/own-algorithm.md."""
    value_hidden: tuple[int, ...] | None = None
    """Widths of the value's or critics' hidden layers, where policy and value share none. None: as hidden."""

    def __post_init__(self) -> None:
        self.require("hidden", all(n >= 1 for n in self.hidden), "widths of at least 1, such as [64, 64]")
        widths = self.value_hidden or ()
        self.require("value_hidden", all(n >= 1 for n in widths), "widths of at least 1, such as [256, 256]")
        self.require("memory_size", self.memory_size >= 1, "at least 1")

    @property
    def critic_hidden(self) -> tuple[int, ...]:
        """Widths of the hidden layers of what judges, where it has its own."""
        return self.hidden if self.value_hidden is None else self.value_hidden


@dataclass(frozen=True)
class TopologyConfig(Section):
    """Where the parts run. It never changes what is learned, except through `staleness`."""

    SECTION = "topology"

    mode: Literal["auto", "fused", "inline", "served"] = "auto"
    """fused: environment, policy and update in one XLA program (JAX environments). inline: actors act with their own
    copy of the parameters (host environments). served: they ask inference workers. auto: picks, and says why."""
    actors: int | None = None
    """Who steps the environments, each its share of them: equal at staleness 0, else as equal as can be. One is
    a thread beside the learner; more, or with a transport other than memory, are processes, and so is the learner.
    None: by measuring (mode auto), else one."""
    slots: int | None = None
    """Groups of environments that take turns: one is stepped while another's actions are chosen. They are divided
    among the actors. None: by measuring (mode auto), else one for each actor (inline), or two (served)."""
    inference_workers: int = 1
    """Processes that choose actions for all actors (served)."""
    inference_batch: int | None = None
    """Rows at most that one of them takes at once. None: as many as there are environments."""
    inference_wait_ms: float = 0.5
    """How long one of them waits for more requests before it computes."""
    replay_workers: int | None = None
    """Processes that keep the replay buffer in the host's memory, each a part of it, and stream rows to the learner;
    actors are divided among them. 0: the learner keeps it, on its device. None: 0 where it fits, else 1 (off-policy
    algorithms)."""
    evaluators: int = 0
    """Processes that play greedy episodes (evaluation.episodes) with the newest version, again and again."""
    transport: Literal["auto", TransportName] = "auto"
    """How workers reach each other: memory (threads of one process), shm (processes of one machine), tcp (encrypted),
    nearest (shm between workers of one host, tcp between hosts). auto: memory for one actor, else shm where there is
    Linux and /dev/shm has room, else tcp; on a cluster nearest."""
    staleness: int = 1
    """How many versions collecting may run ahead of learning; 0 is synchronous and deterministic. Replay workers add
    up to as many again, and 4."""
    devices: int | None = None
    """Devices that a fused run shards its environments over. None: every accelerator, or as many cores as have
    4,096 rows of a minibatch each, or two, one for policy and one for value (algorithm.grad_norm_of=each)."""
    dispatch: int | None = None
    """Iterations for each dispatch of a fused run; None: about 16,384 steps' worth."""

    def __post_init__(self) -> None:
        self.require("staleness", self.staleness >= 0, "at least 0")
        self.require("actors", self.actors is None or self.actors >= 1, "at least 1")
        self.require("inference_workers", self.inference_workers >= 1, "at least 1")
        self.require("inference_batch", self.inference_batch is None or self.inference_batch >= 1, "at least 1")
        self.require("inference_wait_ms", self.inference_wait_ms >= 0, "at least 0")
        self.require("replay_workers", self.replay_workers is None or self.replay_workers >= 0, "at least 0")
        self.require("evaluators", self.evaluators >= 0, "at least 0")
        self.require("slots", self.slots is None or self.slots >= 1, "at least 1")
        self.require("devices", self.devices is None or self.devices >= 1, "at least 1")
        self.require("dispatch", self.dispatch is None or self.dispatch >= 1, "at least 1")


@dataclass(frozen=True)
class LimitsConfig(Section):
    """When a run ends: whichever limit is reached first."""

    SECTION = "limits"

    total_steps: int = 1_000_000
    """Environment steps."""
    wall_s: float | None = None
    """Seconds of training, compilation included."""
    target_return: float | None = None
    """Mean return of the last 100 training episodes."""
    silence_s: float = 30.0
    """Seconds that a worker on a cluster may be silent before it is replaced. A cut that heals sooner costs nothing."""
    hang_s: float = 300.0
    """Seconds without a sign of life after which environments or a worker are taken for hung."""

    def __post_init__(self) -> None:
        self.require("total_steps", self.total_steps >= 1, "at least 1")
        self.require("wall_s", self.wall_s is None or self.wall_s > 0, "more than 0")
        self.require("silence_s", self.silence_s > 0, "more than 0")
        self.require("hang_s", self.hang_s > 0, "more than 0")


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """How often the whole training state is saved, and how many of them stay."""

    SECTION = "checkpoint"

    every_s: float | None = 60.0
    """Seconds between checkpoints; None: only by updates."""
    every_updates: int | None = None
    """Updates between checkpoints, beside every_s."""
    keep: int = 3
    """Newest checkpoints that stay, beside the best one."""

    def __post_init__(self) -> None:
        self.require("every_s", self.every_s is None or self.every_s > 0, "more than 0")
        self.require("every_updates", self.every_updates is None or self.every_updates >= 1, "at least 1")
        self.require("keep", self.keep >= 1, "at least 1")


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """Greedy episodes after training, with frozen normalisation."""

    SECTION = "evaluation"

    episodes: int = 10
    """How many; 0 leaves eval_return out of the summary."""
    video: bool = False
    """Film an episode of every version that an evaluator plays (topology.evaluators)."""

    def __post_init__(self) -> None:
        self.require("episodes", self.episodes >= 0, "at least 0")


@dataclass(frozen=True)
class Experiment:
    """One experiment, complete: what `podium train` runs and `experiment.toml` holds."""

    algorithm: AlgorithmConfig = field(default_factory=PPOConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    topology: TopologyConfig = field(default_factory=TopologyConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    seed: int = 0
    """Where random numbers begin. Two runs with one seed are equal bit for bit in fused mode and with
    --deterministic; else actors and learner overlap, and the runs differ after a few updates."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed = {self.seed}: must be at least 0")

    def hyper(self) -> dict[str, float]:
        """What an algorithm's `init` is given: numbers that are traced, so that changing one compiles nothing."""
        return {**self.algorithm.hyper(), STEP_SHARE: 1 / self.limits.total_steps}

    def rows_per_update(self, spec: "EnvSpec") -> int:
        """Steps of rows that one update eats: T x B, reset rows included."""
        return self.algorithm.fragment_length * spec.rows(self.env.num_envs)
