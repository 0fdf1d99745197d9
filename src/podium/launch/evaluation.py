"""Plays episodes with a trained policy, and films them."""

import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import jax
import numpy as np

from podium.core.errors import ConfigError, EndlessEpisodeError
from podium.core.types import Tree
from podium.launch.plan import Plan
from podium.launch.policy import Agent, Policy, agent_of
from podium.ops.random_keys import run_key
from podium.protocol.streams import ParameterReader
from podium.runs.directory import RunDirectory
from podium.runs.video import write_video
from podium.workers.evaluator import PlayedEpisodes, evaluate
from podium.workers.layout import Layouts

EVALUATION_SEED = 1_000_003
"""Added to a run's seed, so that evaluation plays other episodes than training did."""


def evaluate_params(
    actor: Plan | Agent,
    params: Tree,
    episodes: int,
    seed: int,
    on_step: Callable[[], None] = lambda: None,
    deterministic: bool = True,
) -> PlayedEpisodes:
    """Episodes, each in an environment of its own: greedy, or with actions drawn as in training."""
    env = actor.env.make_host(_seeds(seed, episodes))
    try:
        return evaluate(actor.algorithm, params, env, run_key(seed), greedy=deterministic, on_step=on_step)
    finally:
        env.close()


def evaluate_policy(policy: Policy, episodes: int, seed: int, deterministic: bool = True) -> PlayedEpisodes:
    """The same for a loaded policy."""
    return evaluate_params(policy.agent, policy.params, episodes, seed, deterministic=deterministic)


def play_versions(
    plan: Plan,
    layouts: Layouts,
    reader: ParameterReader,
    directory: RunDirectory,
    stop: threading.Event,
    beat: Callable[[dict[str, float]], None],
    reconnect: Callable[[], None],
    on_step: Callable[[], None] = lambda: None,
) -> None:
    """The evaluator: greedy episodes with the newest version, again and again, until `stop` is set.

    What cannot be filmed is said once, and played all the same.
    """
    config = plan.experiment.evaluation
    seed = (plan.experiment.seed + EVALUATION_SEED) % 2**32
    plays, filming = 0, config.video
    while not stop.is_set():
        reconnect()
        news = reader.read(timeout=0.5)
        if news is None:
            continue
        version, arrays = news
        params = layouts.params.tree(arrays)
        try:
            played = evaluate_params(plan, params, max(1, config.episodes), seed, on_step)
        except EndlessEpisodeError as error:
            print(f"update {version.update}: {error}", flush=True)
            continue
        plays += 1
        metrics = {"plays": plays, "return": played.mean, "stderr": played.stderr, "update": version.update}
        beat(metrics)
        print(f"update {version.update}: return {played.mean:.1f} +- {played.stderr:.1f}", flush=True)
        if filming:
            try:
                film(Policy(agent_of(plan), params, version.update, directory), directory, seed, on_step)
            except Exception as error:  # noqa: BLE001 - each library that draws fails in its own way
                filming = False
                print(f"evaluation.video: no more videos: {error}", flush=True)


def draw_without_a_screen() -> None:
    """Let MuJoCo and SDL draw where there is no screen; before they are imported, or they would not notice."""
    if sys.platform == "linux" and not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")


def film(
    policy: Policy,
    directory: RunDirectory,
    seed: int,
    on_step: Callable[[], None] = lambda: None,
    deterministic: bool = True,
) -> Path:
    """One episode as an mp4 in the run's videos."""
    frames: list[np.ndarray] = []
    agent, params = policy.agent, jax.device_get(policy.params)
    try:
        with closing(agent.env.make_host(_seeds(seed, 1), render=True)) as env:
            evaluate(agent.algorithm, params, env, run_key(seed), deterministic, frames.append, on_step)
    except NotImplementedError:
        raise ConfigError(f"--video: {agent.experiment.env.id} draws no pictures; one of Gymnasium does") from None
    except Exception as error:  # each library that draws fails in its own way
        if frames:
            raise
        why = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise ConfigError(f"--video: {agent.experiment.env.id} cannot be drawn here: {why}") from error
    directory.videos.mkdir(exist_ok=True)
    return write_video(directory.videos / f"update-{policy.update:08d}.mp4", frames)


def _seeds(seed: int, count: int) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(count) >> 1
