"""Podium's SAC and TD3 beside those of Stable-Baselines3 and SBX, on the same work: `podium bench off_policy`.

HalfCheetah-v5, networks of 256x256, batches of 256 rows, one update for each environment step, in rounds of
8 environments x 8 steps and then 64 updates. Each contender trains in a process of its own, each peer in a virtual
environment of its own. They take turns, and what counts is the ratio within a run. Let nothing else run meanwhile.
"""

import json
import sys
from pathlib import Path

import contest
import venvs

WORKLOADS = ("sac", "td3")
CONTENDERS = ("podium", "sb3", "sbx")


def command(contender: str, workload: str, seconds: float) -> list[str]:
    """What trains this contender on this work."""
    ours = contender == "podium"
    python = sys.executable if ours else str(venvs.ensure(contender))
    script = Path(__file__).with_name("podium_off_policy.py") if ours else venvs.script(contender, "off_policy")
    return [python, str(script), "--workload", workload, "--seconds", str(seconds)]


def main() -> None:
    parser = contest.make_parser(__doc__, seconds=20.0)
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+", default=list(WORKLOADS))
    arguments = parser.parse_args()
    contenders = [contender for contender in CONTENDERS if contender not in arguments.skip]
    results = contest.run_in_turns(
        {w: {c: command(c, w, arguments.seconds) for c in contenders} for w in arguments.workload},
        arguments.rounds,
        arguments.tries,
    )
    print(f"\n{contest.heading()}")
    for workload in arguments.workload:
        contest.show_rates(workload, results[workload])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
