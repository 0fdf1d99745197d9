"""rejax's PPO on gymnax's CartPole-v1: prints how many environment steps it trains on in a second."""

from importlib.metadata import version
from typing import NamedTuple

import jax
from rejax import PPO
from window import Window, parse, report


class Workload(NamedTuple):
    num_envs: int
    num_steps: int
    num_epochs: int
    num_minibatches: int
    iterations_a_call: int
    """Long enough (about two seconds) that the cost of a dispatch is nothing beside it."""


WORKLOADS = {
    "cartpole-16": Workload(16, 128, num_epochs=10, num_minibatches=8, iterations_a_call=40),
    "cartpole-2048": Workload(2048, 128, num_epochs=4, num_minibatches=4, iterations_a_call=1),
}


def build(work: Workload) -> PPO:
    steps_a_call = work.num_envs * work.num_steps * work.iterations_a_call
    algorithm = PPO.create(
        env="CartPole-v1",
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        num_envs=work.num_envs,
        num_steps=work.num_steps,
        num_epochs=work.num_epochs,
        num_minibatches=work.num_minibatches,
        learning_rate=3e-4,
        gamma=0.99,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        total_timesteps=steps_a_call,
        eval_freq=steps_a_call,
        skip_initial_evaluation=True,
    )
    # Only training is measured: rejax would evaluate 128 episodes at the end of each call.
    return algorithm.replace(eval_callback=lambda algorithm, state, key: ())


def main() -> None:
    arguments = parse(list(WORKLOADS))
    algorithm = build(WORKLOADS[arguments.workload])
    state = jax.jit(algorithm.init_state)(jax.random.key(0))
    # rejax's own loop, going on from a state: several calls in a row are one training run.
    train = jax.jit(lambda state: algorithm.train(train_state=state)[0]).lower(state).compile()
    window = Window(warm_up=0, seconds=arguments.seconds)
    while not window.closed:
        state = jax.block_until_ready(train(state))
        window.mark(int(state.global_step))
    work = WORKLOADS[arguments.workload]
    note = f"{work.num_envs} envs x {work.num_steps} steps, one jitted call for {work.iterations_a_call} iterations"
    report("rejax", version("rejax"), arguments.workload, window, note)


if __name__ == "__main__":
    main()
