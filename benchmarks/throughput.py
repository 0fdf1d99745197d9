"""Podium beside its peers, on the same work: `make bench`, or `podium bench throughput`.

Each contender trains in a process of its own, each peer in a virtual environment of its own. They take turns,
several rounds in one run, and what counts is the ratio within a run. Let nothing else run meanwhile.

`--against COMMIT` measures Podium beside an earlier commit of itself, in place of its peers.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import contest
import venvs

from podium.core.extras import install_line

HERE = Path(__file__).parent
CONTENDERS = {
    "halfcheetah": ("podium", "sb3", "sample_factory", "rllib", "limit"),
    "halfcheetah-64": ("podium", "limit"),
    "cartpole-16": ("podium", "rejax"),
    "cartpole-2048": ("podium", "rejax"),
}


def command(contender: str, workload: str, seconds: float) -> list[str]:
    """What trains this contender on this work."""
    if contender in ("podium", "limit"):
        script, python = HERE / f"{'podium_ppo' if contender == 'podium' else 'limit'}.py", sys.executable
    else:
        script, python = venvs.script(contender), str(venvs.ensure(contender))
    return [python, str(script), "--workload", workload, "--seconds", str(seconds)]


def earlier(commit: str, workload: str, seconds: float) -> list[str]:
    """What trains Podium as it was at a commit: its own source and script, with this environment's libraries."""
    tree = venvs.VENVS / f"commit-{commit}"
    if not tree.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=HERE, check=True)
    script = [sys.executable, str(tree / "benchmarks" / "podium_ppo.py"), "--workload", workload]
    return ["env", f"PYTHONPATH={tree / 'src'}", *script, "--seconds", str(seconds)]


def show_columns(results: contest.Results) -> None:
    """As users of simulators know them: env only, env + act, training; and the core-time of each part."""
    rows, parts = results["limit"], ("env", "act", "update")
    only, act, ours = (
        contest.middle(rows, lambda row, key=key: row[key]) for key in ("env_only", "env_act", "training")
    )
    spent = ", ".join(f"{name} {contest.middle(rows, lambda row, n=name: row[f'{n}_core_us']):.1f}" for name in parts)
    print(f"env only {only:,.0f} | env + act {act:,.0f} | training {ours:,.0f} steps/s; core-microseconds: {spent}\n")


def main() -> None:
    parser = contest.make_parser(__doc__, seconds=20.0)
    parser.add_argument("--workload", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    parser.add_argument("--against", metavar="COMMIT", help="an earlier commit, in place of peers")
    arguments = parser.parse_args()
    needs = {"envpool": "halfcheetah", "gymnax": "cartpole"}
    for library, work in needs.items():
        wanted = any(workload.startswith(work) for workload in arguments.workload) and "podium" not in arguments.skip
        if wanted and find_spec(library) is None:
            raise SystemExit(f"error: podium bench throughput: {library} is not installed: {install_line(library)}")
    contenders = dict.fromkeys(CONTENDERS, ("podium",)) if arguments.against else CONTENDERS
    commands = {
        workload: {c: command(c, workload, arguments.seconds) for c in contenders[workload] if c not in arguments.skip}
        for workload in arguments.workload
    }
    for workload, chosen in commands.items() if arguments.against else ():
        chosen[arguments.against] = earlier(arguments.against, workload, arguments.seconds)
    results = contest.run_in_turns(commands, arguments.rounds, arguments.tries)
    print(f"\n{contest.heading()}")
    for workload in arguments.workload:
        contest.show_rates(workload, results[workload])
        if "limit" in results[workload]:
            show_columns(results[workload])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
