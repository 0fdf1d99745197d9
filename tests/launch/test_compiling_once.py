"""Another seed, or another number of steps, runs the programs that are compiled already."""

from pathlib import Path
from typing import Any

import jax
import pytest
from jax._src import compilation_cache  # the one way to have the cache elsewhere in a process that has used it

import podium
from podium.launch import plan

INLINE = {"topology.mode": "inline", "env.num_envs": 2, "algorithm.fragment_length": 8, "network.hidden": [8]}
RUNS = {
    "ppo in threads": ("ppo", "podium:Catch-v0", {"algorithm.minibatch_size": 16, "algorithm.schedule": "linear"}),
    "dqn in threads": ("dqn", "podium:Catch-v0", {"algorithm.learning_starts": 32, "algorithm.schedule": "linear"}),
    "es in threads": ("es", "podium:Catch-v0", {"algorithm.population": 4}),
    "ppo fused": ("ppo", "podium:Catch-v0", {"algorithm.minibatch_size": 16, "topology.mode": "fused"}),
    "es fused": ("es", "podium:Catch-v0", {"algorithm.population": 4, "topology.mode": "fused"}),
}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A compilation cache of this test's own."""
    own = {"jax_compilation_cache_dir": str(tmp_path / "xla"), "jax_persistent_cache_min_compile_time_secs": 0}
    before = {name: jax.config.values[name] for name in own}
    # A run keeps what takes long to compile: which programs that are depends on the clock, so here it keeps all.
    monkeypatch.setattr(plan, "configure", lambda experiment: None)
    for settings in (own, before):
        compilation_cache.reset_cache()
        for name, value in settings.items():
            jax.config.update(name, value)
        if settings is own:
            yield tmp_path / "xla"


@pytest.mark.parametrize("run", RUNS)
def test_another_seed_and_another_number_of_steps_compile_nothing(run: str, cache: Path, tmp_path: Path) -> None:
    algorithm, env, own = RUNS[run]
    options = {**INLINE, "evaluation.episodes": 2, **own}
    compiled = []
    for seed, steps in ((1, 64), (2, 96)):
        podium.train(algorithm, env, seed=seed, total_steps=steps, set=options, root=tmp_path, progress=False, track=())
        compiled.append({path.name for path in cache.iterdir() if path.name.endswith("-cache")})
    assert compiled[0]
    assert compiled[1] == compiled[0]
