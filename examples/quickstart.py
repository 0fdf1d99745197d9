"""Train, plot, and play with what was learned, in Python: `python examples/quickstart.py [STEPS]`."""

import sys

import gymnasium

import podium
from podium.launch.policy import Policy


def play(policy: Policy, env: gymnasium.Env, seed: int) -> float:
    """One episode with the trained policy; returns its return."""
    total, ended = 0.0, False
    obs, _ = env.reset(seed=seed)
    memory = None  # None starts an episode; a recurrent policy wants it back at each step
    while not ended:
        action, memory = policy.predict(obs, memory)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        ended = terminated or truncated
    return total


def main(total_steps: int = 100_000) -> None:
    run = podium.train("ppo", "CartPole-v1", total_steps=total_steps, seed=0)
    policy = podium.load(run)
    print(f"trained: {run.summary['episode_return']}, curve in {run.path / 'curve.png'}")
    returns = [play(policy, gymnasium.make("CartPole-v1"), seed) for seed in range(3)]
    print(f"played three episodes: {returns}")


if __name__ == "__main__":
    main(*(int(arg.replace("_", "")) for arg in sys.argv[1:]))
