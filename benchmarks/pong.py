"""IMPALA on Pong from pixels, beside Sample Factory on the same work: `podium bench pong`.

Both step EnvPool's Pong-v5 (32 environments, 84x84x4 bytes, a step is 4 frames), with the Nature CNN, fragments of 16
steps, and one gradient step of 512 steps for each. They take turns, and what counts is the ratio within a
run. Let nothing else run meanwhile.

What it learns is another command, with its preset: `podium train impala envpool:Pong-v5` (2 M steps, 8 M frames).
"""

import sys
import tempfile
from importlib.metadata import version
from typing import Any

import contest
import venvs

import podium

sys.path.insert(0, str(venvs.PINS))

from window import Window, end_on_sigterm, report

PEER = "sample_factory_pong"
SETTINGS: dict[str, Any] = {
    "env.num_envs": 32,
    "env.wrappers": ["atari"],
    "network.hidden": [],
    "network.vision": "nature",
    "algorithm.fragment_length": 16,
    "algorithm.learning_rate": 6e-4,
    "algorithm.entropy_coef": 0.01,
    "evaluation.episodes": 0,
    "limits.total_steps": 10**9,
}


def train(seconds: float) -> None:
    """Train Podium for a window of so many seconds and print its rate, as the peers' scripts do."""
    end_on_sigterm()
    window = Window(warm_up=2, seconds=seconds)

    def mark(row: dict[str, Any]) -> bool:
        window.mark(row["step"])
        return not window.closed

    with tempfile.TemporaryDirectory() as root:
        run = podium.train(
            "impala", "envpool:Pong-v5", preset="none", set=SETTINGS, root=root, on_report=mark, progress=False
        )
        summary = run.summary
    note = f"mode {summary['mode']}, {summary['env_library']}, mean staleness {summary['staleness']['mean']:.2f}"
    report("podium", version("podium-rl"), "pong", window, note)


def main() -> None:
    parser = contest.make_parser(__doc__, seconds=30.0)
    parser.add_argument("--train", action="store_true", help="train Podium here and print its rate; nothing else")
    arguments = parser.parse_args()
    if arguments.train:
        return train(arguments.seconds)
    commands = {
        "podium": [sys.executable, __file__, "--train", "--seconds", str(arguments.seconds)],
        "sample_factory": [
            str(venvs.ensure(PEER)), str(venvs.PINS / f"{PEER}.py"), "--seconds", str(arguments.seconds),
        ],
    }  # fmt: skip
    chosen = {contender: command for contender, command in commands.items() if contender not in arguments.skip}
    results = contest.run_in_turns({"pong": chosen}, arguments.rounds, arguments.tries)
    print(f"\n{contest.heading()}")
    contest.show_rates("pong", results["pong"])
    return None


if __name__ == "__main__":
    main()
