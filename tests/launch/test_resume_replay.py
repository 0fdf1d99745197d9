"""A run that learns from a replay buffer and was killed goes on as if it had not been: the buffer is in checkpoints."""

from pathlib import Path
from typing import Any

import podium
from launch import commands
from launch.commands import checkpoints, digest, flags, kill_at_random, start, timeless_rows, wait_until

# Everything that a buffer can hold: priorities, sequences and the memory that they start from.
TINY: dict[str, Any] = {
    "env.num_envs": 4,
    "network.hidden": [8],
    "algorithm.fragment_length": 16,
    "algorithm.batch_size": 16,
    "algorithm.buffer_size": 1_000,  # overwritten many times
    "algorithm.learning_starts": 200,
    "algorithm.update_ratio": 0.25,
    "algorithm.n_step": 3,
    "algorithm.priority_exponent": 0.6,
    "algorithm.burn_in": 4,
    "network.memory": "gru",
    "network.memory_size": 8,
    "topology.devices": 1,
    "topology.actors": 1,
    "topology.dispatch": 4,
    "checkpoint.every_updates": 8,
    "evaluation.episodes": 0,
}
FUSED = ["podium:Catch-v0", "--total-steps", "12000"]


def test_a_fused_dqn_run_killed_twice_ends_in_the_same_bits_as_one_never_killed(tmp_path: Path) -> None:
    options = flags(TINY)
    whole = commands.podium("train", "dqn", *FUSED, "--name", "whole", *options, cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr

    run, kills = tmp_path / "runs" / "killed", 0
    process = start("train", "dqn", *FUSED, "--name", "killed", *options, cwd=tmp_path)
    for _ in range(2):
        before = checkpoints(run)
        if wait_until(lambda before=before: checkpoints(run) > before, process):
            kills += kill_at_random(process, within_s=0.3)
        if process.returncode == 0:
            break
        process = start("resume", "killed", cwd=tmp_path)
    assert process.wait(commands.LIMIT_S) == 0, (tmp_path / "said").read_text()
    assert kills >= 1

    rows = timeless_rows(run)
    assert rows == timeless_rows(tmp_path / "runs" / "whole")
    assert rows[-1]["gradient_updates"] == 16
    assert digest(run) == digest(tmp_path / "runs" / "whole")
    samples = podium.Run(run).summary["samples"]
    assert samples["unexplained"] == 0
    assert samples["trained"] == samples["produced"] - samples["undone"]
