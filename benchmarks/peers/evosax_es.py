"""evosax's OpenAI-ES on gymnax's CartPole-v1: prints how many environment steps it plays in a second."""

from importlib.metadata import version

import jax
import jax.numpy as jnp
import optax
from evosax.algorithms import Open_ES
from evosax.problems.networks import MLP
from evosax.problems.rl.gymnax import GymnaxProblem
from window import Window, parse, report

POPULATION, STEPS = 256, 500
GENERATIONS_A_CALL = 4
"""As many as Podium makes in a dispatch."""
ENDLESS = {"theta_threshold_radians": 1e9, "x_threshold": 1e9}
"""No pole falls: so every individual plays all its steps, here as there."""


def main() -> None:
    arguments = parse(["cartpole-256"])
    policy = MLP(layer_sizes=(64, 64, 2), activation=jnp.tanh, output_fn=lambda x, key: jnp.argmax(x, axis=-1))
    problem = GymnaxProblem(
        "CartPole-v1", policy, episode_length=STEPS, use_normalize_obs=False, env_params=ENDLESS
    )  # fmt: skip
    key = jax.random.key(0)
    start = policy.init(key, jnp.zeros(4), key)
    strategy = Open_ES(
        POPULATION,
        start,
        optimizer=optax.adam(0.03),
        std_schedule=optax.constant_schedule(0.1),
        metrics_fn=lambda *_: {},
    )
    params = strategy.default_params

    def generation(carry: tuple, key: jax.Array) -> tuple:
        state, problem_state = carry
        ask_key, play_key, tell_key = jax.random.split(key, 3)
        population, state = strategy.ask(ask_key, state, params)
        fitness, problem_state, _ = problem.eval(play_key, population, problem_state)
        state, _ = strategy.tell(tell_key, population, -fitness, state, params)
        return (state, problem_state), None

    @jax.jit
    def run(carry: tuple, key: jax.Array) -> tuple:
        return jax.lax.scan(generation, carry, jax.random.split(key, GENERATIONS_A_CALL))[0]

    carry = strategy.init(key, start, params), problem.init(key)
    window, steps = Window(warm_up=2, seconds=arguments.seconds), 0
    while not window.closed:
        key, call_key = jax.random.split(key)
        carry = jax.block_until_ready(run(carry, call_key))
        steps += POPULATION * STEPS * GENERATIONS_A_CALL
        window.mark(steps)
    note = f"population {POPULATION} x {STEPS} steps, 64x64 tanh, one jitted call for {GENERATIONS_A_CALL} generations"
    report("evosax", version("evosax"), arguments.workload, window, note)


if __name__ == "__main__":
    main()
