"""Gymnasium ids and wrappers in EnvPool's own terms: its options, repeated actions, stacks around the batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from podium.core.config import EnvConfig
from podium.core.errors import ConfigError
from podium.envs import envpool, gymnasium_ids
from podium.envs.wrappers import Wrapper, refuse


@dataclass(frozen=True)
class EnvPoolPlan:
    """An id and its wrappers in EnvPool's own terms."""

    name: str
    options: Mapping[str, Any]
    repeat: int = 1
    stacks: tuple[int, ...] = ()


def plan_gymnasium(config: EnvConfig, wrappers: Sequence[Wrapper]) -> EnvPoolPlan | None:
    """How EnvPool would step a Gymnasium id, or None where Gymnasium has to."""
    name, kwargs = config.id, dict(config.kwargs)
    game = gymnasium_ids.find_game(name)
    if game is not None and wrappers and wrappers[0].name == "atari":
        name = f"{game[0]}-v5"
        kwargs = {"repeat_action_probability": game[1]["repeat_action_probability"], **kwargs}
    if name not in envpool.list_ids():
        return None
    try:
        plan = translate(name, kwargs, wrappers)
        envpool.make_spec(plan.name, plan.options, config.metrics)
    except ConfigError:
        return None
    return plan


def translate(name: str, kwargs: Mapping[str, Any], wrappers: Sequence[Wrapper]) -> EnvPoolPlan:
    """Wrappers as EnvPool's options, as far as they can be."""
    if "xml_file" in kwargs:
        raise ConfigError(f"env.kwargs = {dict(kwargs)!r}: EnvPool steps its own models only; use gymnasium:{name}")
    options, repeat, stacks = dict(kwargs), 1, []
    for wrapper in wrappers:
        match wrapper:
            case Wrapper("atari"):
                if not envpool.is_atari(name) or repeat > 1 or stacks:
                    raise refuse(wrapper, "comes first, and works on Atari games, such as envpool:Pong-v5")
                options = {**envpool.ATARI_OPTIONS, **options}
            case Wrapper("time_limit", count):
                most = options.get("max_episode_steps") or envpool.known_options(name).get("max_episode_steps")
                limit = count * repeat
                options["max_episode_steps"] = min(most, limit) if most else limit
            case Wrapper("action_repeat", count) if not stacks:
                repeat *= count
            case Wrapper("frame_stack", count):
                stacks.append(count)
            case _:
                raise refuse(wrapper, f"EnvPool cannot do it here; gymnasium:{name} may")
    return EnvPoolPlan(name, options, repeat, tuple(stacks))
