"""Which numbers of an episode's end may be named: `env.metrics`."""

from collections.abc import Collection, Sequence

from podium.core.config import IS_SUCCESS
from podium.core.errors import ConfigError
from podium.core.imports import suggest


def refuse_unknown_metrics(env: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raise ConfigError for a name that an environment does not have; is_success is looked for in all of them.

    refuse_unknown_metrics("EnvPool's HalfCheetah-v5", ["x_position"], ["x_position", "x_velocity"])
    """
    for name in names:
        if name not in known and name != IS_SUCCESS:
            hint = suggest(name, known) or (f"; it has {', '.join(sorted(known))}" if known else "; it has none")
            raise ConfigError(f"env.metrics = {list(names)!r}: {env} has no {name!r}{hint}")
