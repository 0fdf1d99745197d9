"""Where the parts of a run go, from what each of them costs: the rule behind `topology.mode = "auto"`.

Arithmetic only; `launch.calibration` measures. Everything is told for one *round*, a step of all environments, whoever
makes it: `measured.update` is the share of an update that falls to one round.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from podium.core.transports import MEMORY, TransportName, between_processes

START_S = 5.0
"""What it costs to start processes: they import and compile once more."""
TRIP_S = 0.001
"""What an inference worker's answer takes beyond choosing: the way there and back, and waiting for other requests."""
KEPT = 0.9
"""What remains of a rate in several processes: fragments are copied, and more workers than cores take turns."""
NEAR = 1.1
"""Of two placements whose rates differ by no more, the simpler one is taken."""
MOST_SLOTS = 8
"""For each actor."""
MOST_ENV_PROCESSES = 8
"""For each core: a process that only steps environments is small, and those that wait leave the core to others."""
PIPE_S = 0.0001
"""What telling one such process to step, and hearing that it has, takes of the actor's time."""
SMALL_PART = 0.25
"""Environments with threads of their own stay one batch while choosing actions is no more than this part of a step."""


class Cost(NamedTuple):
    """What one thing takes: time on the clock, and time of cores, of all threads together."""

    wall_s: float
    core_s: float


NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True)
class Costs:
    """What was measured of an experiment on this machine. What was not needed for the answer is left out."""

    env: Cost
    """A step of all environments, by one actor."""
    parallel: bool = False
    """Whether threads or processes of their own step them, as EnvPool's do."""
    act: Mapping[int, Cost] = field(default_factory=dict)
    """Choosing actions, by the number of environments whose rows they are for."""
    update: Cost = NOTHING

    def acting(self, num_envs: int) -> Cost:
        """Choosing for so many environments: as measured for the next larger number."""
        return self.act[min(size for size in self.act if size >= num_envs)] if self.act else NOTHING


@dataclass(frozen=True)
class Placement:
    """Who runs where: topology fields, `env.processes`, and why. `inference_batch` counts environments."""

    mode: Literal["inline", "served"]
    actors: int
    slots: int
    inference_workers: int
    inference_batch: int | None
    transport: TransportName
    reasons: tuple[str, ...]
    env_processes: int = 0


def choose(
    measured: Costs,
    cores: int,
    num_envs: int,
    *,
    steps: float = math.inf,
    seconds: float = math.inf,
    accelerator: bool = False,
    processes: bool = True,
    env_processes: bool = False,
    transport: TransportName | None = None,
    slots: int | None = None,
) -> Placement:
    """The simplest placement whose rate comes near the best one's.

    `steps` and `seconds` are the run's limits: a short one is not worth starting processes for. `processes` says
    whether other processes could make the environments, and `env_processes` whether `env.processes` could step them;
    `transport` and `slots` are those that the user has set.

    choose(Costs(Cost(0.032, 0.032), act={16: Cost(1e-4, 1e-4)}), cores=2, num_envs=16).actors == 2
    """
    apart = transport or between_processes()
    here = Placement("inline", 1, slots or 1, 1, None, transport or MEMORY.name, ())
    if is_short(measured, num_envs, steps, seconds) and transport is None:
        return replace(here, reasons=(_why_short(measured, num_envs, steps, seconds),))
    places = [here, *(_ring(measured, num_envs, here) if slots is None else ())]
    if processes and not measured.parallel:
        places += _apart(measured, cores, num_envs, accelerator, slots, apart)
        places += _spread(measured, cores, num_envs, here) if env_processes and slots in (None, 1) else ()
    rates = {place: rate(measured, cores, num_envs, place) for place in places}
    best = next(place for place in places if rates[place] * NEAR >= max(rates.values()))
    saved = min(seconds, steps / rates[here]) * (1 - rates[here] / rates[best])
    if (best.transport == apart or best.env_processes) and transport is None and saved < START_S:
        return replace(here, reasons=(_costs(measured, num_envs), f"other processes would save {saved:.1f} s only"))
    if best == here:
        return replace(here, reasons=(_costs(measured, num_envs), _why_here(measured, processes)))
    return replace(best, reasons=(_costs(measured, num_envs), _gain(best, rates[best], rates[here])))


def is_short(measured: Costs, num_envs: int, steps: float, seconds: float) -> bool:
    """Whether stepping the environments takes so little in the whole run that it need not be shared out."""
    return min(seconds, _stepping_s(measured, num_envs, steps)) < START_S


def acts_cheaply(measured: Costs, num_envs: int) -> bool:
    """Whether choosing actions is a small part of a round already when one actor does it for all environments."""
    return measured.acting(num_envs).wall_s <= SMALL_PART * measured.env.wall_s


def most_actors(measured: Costs, cores: int) -> int:
    """One for each core, or two where environments wait for something else than a core for half of their step."""
    share = measured.env.core_s / measured.env.wall_s if measured.env.wall_s else 1.0
    return max(1, min(2 * cores, int(cores / max(min(share, 1.0), 0.5))))


def rate(measured: Costs, cores: int, num_envs: int, place: Placement) -> float:
    """Environment steps a second that a placement should reach: by its slowest part, or by the cores there are."""
    env, update, ring = measured.env, measured.update, place.slots // place.actors
    slot_s = _spread_s(env, num_envs, place.env_processes) / place.slots
    if place.mode == "served":
        assert place.inference_batch is not None
        act, acts = measured.acting(place.inference_batch), num_envs / place.inference_batch
        # SRL's rule: an actor steps its other slots while one waits, and is never idle if that takes longer.
        turn = max(ring * slot_s, slot_s + act.wall_s + TRIP_S, acts * act.wall_s / place.inference_workers)
    elif ring > 1 and measured.parallel:
        act, acts = measured.acting(num_envs // place.slots), place.slots
        turn = max(ring * slot_s, ring * act.wall_s, slot_s + act.wall_s)
    else:  # an environment that is stepped by the actor itself cannot be stepped while it chooses
        act, acts = measured.acting(num_envs // place.actors), place.actors
        turn = ring * slot_s + act.wall_s
    free = cores if update != NOTHING else max(1, cores - 1)  # a learner that was not measured has one for itself
    busy = (env.core_s + place.env_processes * PIPE_S + acts * act.core_s + update.core_s) / free
    kept = KEPT if place.actors > 1 or place.env_processes or place.mode == "served" else 1.0
    return kept * num_envs / max(turn, update.wall_s, busy)


def slots_for(step_s: float, latency_s: float, num_envs: int) -> int:
    """The fewest slots of an actor that leave it no idle time: latency < step time x (slots - 1), SRL's rule.

    `step_s` is that of all its environments; a slot's is its part of it. If none are enough, as many as can be.

    >>> slots_for(step_s=0.008, latency_s=0.005, num_envs=8)
    4
    """
    can = [n for n in range(1, MOST_SLOTS + 1) if num_envs % n == 0]
    return next((n for n in can if latency_s < step_s / n * (n - 1)), can[-1])


def _ring(measured: Costs, num_envs: int, here: Placement) -> Iterator[Placement]:
    """Two slots: environments with threads of their own step one while the other's actions are chosen."""
    if measured.parallel and num_envs % 2 == 0 and not acts_cheaply(measured, num_envs):
        yield replace(here, slots=2)


def _apart(
    measured: Costs, cores: int, num_envs: int, accelerator: bool, slots: int | None, apart: TransportName
) -> Iterator[Placement]:
    """Placements of several actors, those with fewer processes first."""
    counts = [n for n in range(2, most_actors(measured, cores) + 1) if (slots or num_envs) % n == 0]
    if not accelerator:  # which several actors cannot all have
        yield from (Placement("inline", n, slots or n, 1, None, apart, ()) for n in counts)
    if not measured.act:
        return
    for workers in range(1, 2 if accelerator else max(1, cores // 2) + 1):
        batch = _batch(measured, math.ceil(num_envs / workers))
        latency_s = measured.acting(batch).wall_s + TRIP_S
        for n in counts:
            ring = n * slots_for(measured.env.wall_s / n, latency_s, num_envs // n)
            taken = slots or ring
            yield Placement("served", n, taken, workers, max(batch, num_envs // taken), apart, ())


def _spread(measured: Costs, cores: int, num_envs: int, here: Placement) -> Iterator[Placement]:
    """One actor whose environments are stepped in processes of their own; more than cores only where they wait."""
    share = measured.env.core_s / measured.env.wall_s if measured.env.wall_s else 1.0
    most = min(num_envs, MOST_ENV_PROCESSES * cores, int(cores / max(min(share, 1.0), 1 / MOST_ENV_PROCESSES)))
    yield from (replace(here, env_processes=n) for n in range(2, most + 1) if num_envs % n == 0)


def _spread_s(env: Cost, num_envs: int, processes: int) -> float:
    """A step of all environments, in so many processes (0: in the actor's own)."""
    return env.wall_s * math.ceil(num_envs / processes) / num_envs + processes * PIPE_S if processes else env.wall_s


def _batch(measured: Costs, most: int) -> int:
    """The fewest environments at which an inference worker comes near its best rate, of the numbers measured."""
    sizes = sorted(size for size in measured.act if size <= most) or [min(measured.act)]
    per_s = {size: size / measured.act[size].wall_s for size in sizes}
    return next(size for size in sizes if per_s[size] * NEAR >= max(per_s.values()))


def _stepping_s(measured: Costs, num_envs: int, steps: float) -> float:
    return steps / num_envs * measured.env.wall_s


def _why_short(measured: Costs, num_envs: int, steps: float, seconds: float) -> str:
    stepping_s = _stepping_s(measured, num_envs, steps)
    if seconds < stepping_s:
        return f"one process, for a run of {seconds:g} s"
    return f"one process, because all its environment steps take about {stepping_s:.1f} s"


def _costs(measured: Costs, num_envs: int) -> str:
    parts = [f"a step of {num_envs} environments takes {_ms(measured.env)}"]
    if measured.act:
        parts.append(f"choosing their actions {_ms(measured.acting(num_envs))}")
    if measured.update != NOTHING:
        parts.append(f"learning from it {_ms(measured.update)}")
    return ", ".join(parts)


def _why_here(measured: Costs, processes: bool) -> str:
    if measured.parallel:
        return "one actor: the environments have threads of their own"
    return "one actor: more would gain nothing" if processes else "one actor: these environments stay in this process"


def _gain(place: Placement, rate: float, rate_here: float) -> str:
    if place.env_processes:
        who = f"one actor, env.processes={place.env_processes}"
        return f"{who}: about {rate:,.0f} steps/s, against {rate_here:,.0f} in its own process"
    who = f"{place.actors} actor(s) with {place.slots // place.actors} slot(s) each"
    if place.mode == "served":
        who += f", {place.inference_workers} inference worker(s) for up to {place.inference_batch} environments"
    return f"{who}: about {rate:,.0f} steps/s, against {rate_here:,.0f} with one actor and slot"


def _ms(cost: Cost) -> str:
    return f"{1e3 * cost.wall_s:.3g} ms"
