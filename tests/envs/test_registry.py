"""From names to environments, and what is said about names that are wrong."""

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from envs.counting import Counting, Reusing, make_counting
from podium.core.config import EnvConfig
from podium.core.errors import ConfigError, EnvError
from podium.core.specs import Array
from podium.envs.envpool import EnvPoolEnv
from podium.envs.envpool_plan import plan_gymnasium
from podium.envs.gymnasium import GymnasiumEnv
from podium.envs.processes import ProcessesEnv
from podium.envs.registry import list_envs, resolve
from podium.envs.testing import check_host_env, copy_step
from podium.envs.wrappers import HostFrameStack, parse_wrappers


def test_envpool_steps_a_gymnasium_id_that_it_has() -> None:
    found = resolve(EnvConfig("CartPole-v1"))
    assert (found.library, found.kind, found.jax_env) == ("envpool", "host", None)
    assert found.note.startswith("EnvPool steps CartPole-v1 (envpool ")
    env = found.make_host([1, 2])
    assert isinstance(env, EnvPoolEnv)
    assert env.spec == found.spec


@pytest.mark.parametrize(
    "config",
    [
        EnvConfig("gymnasium:CartPole-v1"),
        EnvConfig("CartPole-v1", kwargs={"sutton_barto_reward": True}),
        EnvConfig("CartPole-v1", wrappers=("envs.counting:Doubled",)),
        EnvConfig("HalfCheetah-v5", metrics=("reward_forward",)),
    ],
    ids=["forced", "kwargs", "wrapper", "metrics"],
)
def test_gymnasium_steps_what_asks_for_it(config: EnvConfig) -> None:
    found = resolve(config)
    assert found.library == "gymnasium"
    assert isinstance(found.make_host([1]), GymnasiumEnv)


def test_processes_ask_for_gymnasium() -> None:
    found = resolve(EnvConfig("CartPole-v1", processes=1))
    env = found.make_host([1, 2])
    assert isinstance(env, ProcessesEnv)
    assert found.note.endswith(", in a process of its own")
    env.close()


def test_rendering_asks_for_gymnasium() -> None:
    env = resolve(EnvConfig("CartPole-v1")).make_host([1], render=True)
    env.reset()
    assert isinstance(env, GymnasiumEnv)
    assert env.render().shape == (400, 600, 3)
    env.close()


def test_specs_agree_between_libraries() -> None:
    for name in ("HalfCheetah-v5", "Hopper-v5", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1"):
        assert resolve(EnvConfig(f"gymnasium:{name}")).spec == resolve(EnvConfig(f"envpool:{name}")).spec


@pytest.mark.parametrize("name", ["gymnax:CartPole-v1", "podium:Catch-v0", "envs.counting:make_counting_jax"])
def test_jax_environments_also_run_on_the_host(name: str) -> None:
    found = resolve(EnvConfig(name))
    assert found.kind == "jax"
    assert found.jax_env is not None
    check_host_env(found.make_host, steps=20)


def test_a_python_path_makes_a_gymnasium_env_or_a_host_env() -> None:
    own = resolve(EnvConfig("envs.counting:make_counting", kwargs={"end": 2}))
    assert own.library == "python"
    for found in (own, resolve(EnvConfig("envs.counting:make_counting_host", kwargs={"end": 2}))):
        env = found.make_host([1, 2])
        env.reset()
        assert [env.step(np.zeros(2, int)).terminated.all() for _ in range(2)] == [False, True]


def test_a_callable_stands_in_for_the_path() -> None:
    found = resolve(EnvConfig("counting"), factory=lambda: Counting(end=2))
    assert found.spec.observation == Array((1,))
    assert resolve(EnvConfig("counting"), factory=make_counting).make_host([1], render=True).reset().obs == 0


@pytest.mark.parametrize(
    ("config", "obs", "rewards"),
    [
        (EnvConfig("envs.counting:make_counting", wrappers=("frame_stack(2)",)), [2, 3], [1, 2, 3]),
        (EnvConfig("envs.counting:make_counting", wrappers=("action_repeat(2)",)), [0], [3, 3, 0]),
        (EnvConfig("envs.counting:make_counting", wrappers=("time_limit(2)",)), [0], [1, 2, 0]),
        (EnvConfig("envs.counting:make_counting", wrappers=("envs.counting:Doubled",)), [3], [2, 4, 6]),
        (EnvConfig("envs.counting:make_counting_jax", wrappers=("envs.counting:double_jax",)), [3], [2, 4, 6]),
        (EnvConfig("envs.counting:make_counting_host", wrappers=("frame_stack(2)",)), [2, 3], [1, 2, 3]),
    ],
)
def test_wrappers_by_name(config: EnvConfig, obs: list, rewards: list) -> None:
    found = resolve(config)
    env = found.make_host([1])
    assert env.spec == found.spec
    env.reset()
    steps = [copy_step(env.step(np.zeros(1, int))) for _ in range(3)]
    assert [step.reward[0] for step in steps] == rewards
    assert steps[-1].obs.tolist() == [obs]
    check_host_env(found.make_host, steps=20, clips_rewards=True)


@pytest.mark.parametrize("repeat", [(), ("action_repeat(2)",)], ids=["each step", "repeated"])
@pytest.mark.parametrize(("make", "wrap"), [("make_counting", "Doubled"), ("make_counting_jax", "double_jax")])
def test_the_return_is_counted_before_a_wrapper_changes_rewards(make: str, wrap: str, repeat: tuple[str, ...]) -> None:
    config = EnvConfig(f"envs.counting:{make}", wrappers=(f"envs.counting:{wrap}", *repeat))
    env = resolve(config).make_host([1])
    env.reset()
    returns = [float(env.step(np.zeros(1, int)).episode_return[0]) for _ in range(5)]
    assert returns == ([3, 6, 0, 3, 6] if repeat else [1, 3, 6, 0, 1])


def test_frames_are_kept_where_an_environment_writes_the_next_over_the_last() -> None:
    env = resolve(EnvConfig("reusing"), factory=Reusing).make_host([1])
    stacked = resolve(EnvConfig("reusing", wrappers=("frame_stack(3)",)), factory=Reusing).make_host([1])
    env.reset(), stacked.reset()
    assert [env.step(np.zeros(1, int)).obs.tolist() for _ in range(2)] == [[[1]], [[2]]]
    assert [stacked.step(np.zeros(1, int)).obs.tolist() for _ in range(2)] == [[[0, 0, 1]], [[0, 1, 2]]]


def test_gymnasium_steps_a_mujoco_model_of_one_s_own(tmp_path: Path) -> None:
    model = Path(gymnasium.__file__).parent / "envs/mujoco/assets/hopper.xml"
    own = tmp_path / "robot.xml"
    own.write_text(model.read_text().replace('damping="1"', 'damping="2"'))
    found = resolve(EnvConfig("Hopper-v5", kwargs={"xml_file": str(own)}))
    assert found.library == "gymnasium"
    env = found.make_host([1])
    env.reset()
    assert np.isfinite(env.step(np.zeros((1, 3))).obs).all()
    env.close()
    with pytest.raises(ConfigError, match="EnvPool steps its own models only; use gymnasium:Hopper-v5"):
        resolve(EnvConfig("envpool:Hopper-v5", kwargs={"xml_file": str(own)}))


def test_wrappers_in_envpool_terms() -> None:
    config = EnvConfig("Pendulum-v1", wrappers=("action_repeat(2)", "time_limit(10)", "frame_stack(3)"))
    found = resolve(config)
    assert (found.library, found.spec.observation) == ("envpool", Array((9,)))
    env = found.make_host([1, 2])
    assert isinstance(env, HostFrameStack)
    env.reset()
    steps = [env.step(np.zeros((2, 1))) for _ in range(11)]
    assert [bool(step.truncated.all()) for step in steps] == [False] * 9 + [True, False]
    check_host_env(found.make_host, steps=30)


def test_atari_is_the_same_task_in_both_libraries() -> None:
    config = EnvConfig("ALE/Breakout-v5", wrappers=("atari",))
    found = resolve(config)
    own = resolve(EnvConfig("gymnasium:ALE/Breakout-v5", wrappers=("atari",)))
    assert (found.library, own.library) == ("envpool", "gymnasium")
    assert found.spec == own.spec
    assert found.spec.observation == Array((84, 84, 4), "uint8")
    check_host_env(own.make_host, steps=80, clips_rewards=True)
    env = own.make_host([1])
    env.reset()
    ends, random = [], np.random.default_rng(0)
    while not (ends and ends[-1]):
        step = env.step(random.integers(0, 4, 1))
        if step.terminated[0]:
            ends.append(bool(step.episode_over[0]))
    assert ends == [False] * 4 + [True]


@pytest.mark.parametrize(("env_id", "sticky"), [("PongNoFrameskip-v4", 0), ("Pong-v4", 0), ("Pong-v0", 0.25)])
def test_old_names_of_games_are_listed_and_played_as_in_the_papers(env_id: str, sticky: float) -> None:
    assert (env_id, "gymnasium") in list_envs(env_id)
    found = resolve(EnvConfig(env_id, wrappers=("atari",)))
    own = resolve(EnvConfig(f"gymnasium:{env_id}", wrappers=("atari",)))
    assert (found.library, own.library) == ("envpool", "gymnasium")
    assert found.spec == own.spec == resolve(EnvConfig("ALE/Pong-v5", wrappers=("atari",))).spec
    games = [env.unwrapped for env in own.make_host([1])._rows._envs]  # pyright: ignore[reportAttributeAccessIssue]
    assert [game._frameskip for game in games] == [1], "the wrapper skips frames, the game does not"
    assert [game.ale.getFloat("repeat_action_probability") for game in games] == [sticky]
    plan = plan_gymnasium(EnvConfig(env_id), parse_wrappers(("atari",)))
    assert plan is not None
    assert (plan.name, plan.options["repeat_action_probability"]) == ("Pong-v5", sticky)
    assert resolve(EnvConfig(env_id)).spec.observation == Array((210, 160, 3), "uint8"), "as it is, without the wrapper"


@pytest.mark.parametrize("library", ["gymnasium", "envpool"])
def test_a_time_limit_ends_the_game_whatever_became_of_its_lives(library: str) -> None:
    env_id = "ALE/Breakout-v5" if library == "gymnasium" else "Breakout-v5"
    found = resolve(EnvConfig(f"{library}:{env_id}", wrappers=("atari", "time_limit(60)")))
    env, random = found.make_host([1]), np.random.default_rng(0)
    env.reset()
    games, lives, points = [], 0, 0.0
    while len(games) < 4:
        step = env.step(random.integers(0, 4, 1))
        points += float(step.reward[0])  # the sign of a brick's worth: 1 in the lower rows, which is all that is hit
        lives += int(step.terminated[0] and not step.episode_over[0])
        if step.episode_over[0]:
            games.append((int(step.episode_length[0]), float(step.episode_return[0]) == points))
            points = 0.0
    env.close()
    assert lives > 0
    assert games == [(60, True)] * 4


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig("CartPol-v1"), "env.id = 'CartPol-v1': there is no such environment; did you mean 'CartPole-v1'"),
        (EnvConfig("Pong-v5"), "did you mean 'ALE/Pong-v5' or 'envpool:Pong-v5'"),
        (EnvConfig("gymnax:Cartpole-v1"), "did you mean .*'gymnax:CartPole-v1'"),
        (EnvConfig("podium:Catsh-v0"), "did you mean 'podium:Catch-v0'"),
        (EnvConfig("no_such_module:make"), "there is no module 'no_such_module'"),
        (EnvConfig("envs.counting:make_nothing"), "must make a gymnasium.Env, a JaxEnv.*not int"),
        (EnvConfig("CartPole-v1", kwargs={"colour": 1}), "env.kwargs = {'colour': 1}: CartPole-v1 refuses it"),
        (EnvConfig("envs.counting:make_counting_jax", kwargs={"colour": 1}), "unexpected keyword argument 'colour'"),
        (EnvConfig("CartPole-v1", wrappers=("frame_stak(4)",)), "did you mean 'frame_stack'"),
        (EnvConfig("CartPole-v1", wrappers=("frame_stack",)), "whole number of at least 1, such as frame_stack"),
        (EnvConfig("CartPole-v1", wrappers=("atari",)), "works on ALE games"),
        (EnvConfig("envpool:CartPole-v1", wrappers=("envs.counting:Doubled",)), "gymnasium:CartPole-v1 may"),
        (EnvConfig("envs.counting:make_counting_host", wrappers=("time_limit(3)",)), "only frame_stack"),
        (EnvConfig("gymnax:CartPole-v1", processes=2), "env.processes = 2"),
        (EnvConfig("playground:CartpoleBalance"), "there is no adapter for MuJoCo Playground yet; make it a JaxEnv"),
        (EnvConfig("pettingzoo:pistonball_v6"), "there is no adapter for PettingZoo yet"),
        (EnvConfig("podium-tests/Clumsy-v0"), "refuses it: .*missing 1 required positional argument: 'size'"),
        (EnvConfig("podium-tests/Clumsy-v0", kwargs={"size": 1, "colour": 1}), "refuses it: .*argument 'colour'"),
    ],
)
def test_wrong_input_is_one_line_that_says_what_is_right(config: EnvConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        resolve(config)
    assert "\n" not in str(caught.value)


def test_an_environment_that_cannot_be_reset_shows_its_own_traceback() -> None:
    class Lame(Counting):
        def reset(self, *, seed: int | None = None, options: object = None) -> None:
            raise ZeroDivisionError("no start")

    with pytest.raises(EnvError, match=r"(?s)made and reset \(seed 0\).*ZeroDivisionError: no start"):
        resolve(EnvConfig("lame"), factory=Lame)


def test_a_type_error_of_the_environment_itself_is_not_taken_for_wrong_arguments() -> None:
    with pytest.raises(EnvError, match=r"(?s)made and reset \(seed 0\).*counting.py.*TypeError: can't multiply"):
        resolve(EnvConfig("podium-tests/Clumsy-v0", kwargs={"size": 7}))


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("make_batch", "make", r"(?s)make_batch raised when it was called with seeds=\[0\]:.*no wheel at all"),
        ("make_bad_jax", "make", r"(?s)make_bad_jax raised when it was called:.*counting.py.*no wheel at all"),
        ("make_bad_jax", "raise", r"(?s)make_bad_jax raised in step:.*counting.py.*the wheel came off"),
        ("make_bad_jax", "obs", r"make_bad_jax in step: obs has shape \(1, 1\), its spec says \(1,\)"),
        ("make_bad_jax", "reward", r"make_bad_jax in step: reward has shape \(1,\), its spec says \(\)"),
        ("make_bad_jax", "tuple", r"make_bad_jax in step: must return \(state, JaxStep\), not \(state, tuple\)"),
    ],
)
def test_an_own_environment_that_cannot_work_is_told_before_the_run(name: str, how: str, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        resolve(EnvConfig(f"envs.counting:{name}", kwargs={"how": how}))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", r"(?s)seeds \[6, 7\] raised in send:.*counting.py.*ZeroDivisionError: the wheel came off"),
        ("obs", r"seeds \[6, 7\] in recv: obs has shape \(2, 1\), its spec says \(2, 2\)"),
        ("reward", r"seeds \[6, 7\] in recv: reward has shape \(\), its spec says \(2,\)"),
        ("metrics", r"seeds \[6, 7\] in recv: metrics has shape \(2,\), its spec says \(2, 1\)"),
    ],
)
def test_an_own_batch_that_breaks_its_spec_is_named_by_its_seeds(how: str, message: str) -> None:
    env = resolve(EnvConfig("envs.counting:make_batch", kwargs={"how": how})).make_host([6, 7])
    env.reset()
    env.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=message):
        env.step(np.zeros(2, int))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("save words", r"arrays and numbers only, not {'count': 'int64\(\)', 'how': '<U10\(\)'}"),
        ("save more", r"it is float64\(1,\), and was float64\(0,\): its shape must not change"),
        ("save late", r"it is float64\(2,\), and was None: its shape must not change"),
    ],
)
def test_an_own_batch_that_saves_what_no_checkpoint_could_hold_is_told_at_once(how: str, message: str) -> None:
    env = resolve(EnvConfig("envs.counting:make_batch", kwargs={"how": how})).make_host([6, 7])
    env.reset()

    def save_twice() -> None:
        env.save()
        env.step(np.zeros(2, int))
        env.save()

    with pytest.raises(EnvError, match=message):
        save_twice()


@pytest.mark.parametrize(
    ("module", "name", "line"),
    [
        ("envpool", "envpool:CartPole-v1", r"pip install -e '\.\[envpool\]'"),
        ("gymnax", "gymnax:CartPole-v1", r"pip install -e '\.\[gymnax\]'"),
        ("ale_py", "ALE/Pong-v5", r"pip install -e '\.\[atari\]'"),
        ("ale_py", "PongNoFrameskip-v4", r"pip install -e '\.\[atari\]'"),
        ("Box2D", "gymnasium:LunarLander-v3", r"pip install -e '\.\[box2d\]'"),
    ],
)
def test_a_missing_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, name: str, line: str
) -> None:
    for loaded in [known for known in sys.modules if known.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=line):
        resolve(EnvConfig(name))


def test_without_envpool_gymnasium_steps_a_plain_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert resolve(EnvConfig("CartPole-v1")).library == "gymnasium"


def test_list_by_part_of_a_name_or_pattern() -> None:
    found = list_envs("cartpole-v1")
    assert ("CartPole-v1", "gymnasium") in found
    assert ("envpool:CartPole-v1", "envpool") in found
    assert ("gymnax:CartPole-v1", "gymnax") in found
    assert ("podium:Catch-v0", "podium") in list_envs("podium:*")
    assert list_envs("no such thing") == []


def test_a_gymnasium_environment_imports_neither_jax_nor_gymnax() -> None:
    code = (
        "import sys; from podium.core.config import EnvConfig; from podium.envs.registry import resolve\n"
        "resolve(EnvConfig('gymnasium:CartPole-v1')).make_host([1]).reset()\n"
        "sys.exit(bool({'jax', 'gymnax', 'envpool'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
