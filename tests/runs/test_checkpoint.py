"""Checkpoints come back bit for bit, or the one before does, or an error says why not."""

import os
import random
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest

from podium.core.errors import CheckpointError
from podium.runs.checkpoint import Checkpoints, params_digest


def make_state(seed: int = 0) -> dict[str, Any]:
    """One leaf of every kind that a training state may hold."""
    key = jax.random.key(seed)
    params = {"kernel": jax.random.normal(key, (4, 3)), "bias": jnp.full(3, 1 / 3, jnp.bfloat16)}
    return {
        "train": {"params": params, "optimiser": optax.adam(1e-3).init(params)},
        "key": key,
        "keys": jax.random.split(jax.random.key(seed, impl="rbg"), 4),
        "no_keys": jax.random.split(key, 3)[:0],
        "empty": (),
        "none": None,
        "no_rows": jnp.zeros((0, 3)),
        "special": np.array([np.nan, np.inf, -0.0, 5e-324]),
        "count": 3,
        "rate": 0.1,
        "flag": True,
        "double": np.float64(0.1),
        "single": np.float32(0.1),
        "bytes": np.arange(256, dtype=np.uint8).reshape(16, 16),
        "big": np.int64(2**62 + 1),
    }


STATE = make_state()


def save_all(path: Path, updates: list[int], keep: int = 9) -> None:
    with Checkpoints(path, keep) as checkpoints:
        for update in updates:
            checkpoints.save(update, STATE, {"update": update})


def test_every_kind_of_leaf_comes_back_bit_for_bit_and_as_what_it_was(tmp_path: Path) -> None:
    save_all(tmp_path, [7])
    restored = Checkpoints(tmp_path).restore(make_state(seed=1))
    assert (restored.update, restored.metadata, restored.notes) == (7, {"update": 7}, [])
    assert jax.tree.structure(restored.tree) == jax.tree.structure(STATE)
    assert jax.tree.map(type, restored.tree) == jax.tree.map(type, STATE)
    assert params_digest(restored.tree) == params_digest(STATE)
    draw = [float(jax.random.normal(tree["key"])) for tree in (restored.tree, STATE)]
    assert draw[0] == draw[1]
    restored.tree["bytes"][0] = 1  # host arrays can be written


def test_shapes_alone_will_do_as_template(tmp_path: Path) -> None:
    save_all(tmp_path, [1])
    template = jax.eval_shape(lambda: make_state()["train"])
    restored = Checkpoints(tmp_path).restore(template, part="train")
    assert params_digest(restored.tree) == params_digest(STATE["train"])


def test_of_a_part_no_other_leaves_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"store": np.zeros(1000), "train": {"empty": np.zeros((0, 3)), "w": np.ones(3)}}, {})
    restore, read = orbax.checkpoint.Checkpointer.restore, []

    def spy(*args: Any, **options: Any) -> Any:
        read.append(restore(*args, **options))
        return read[-1]

    monkeypatch.setattr(orbax.checkpoint.Checkpointer, "restore", spy)
    tree = Checkpoints(tmp_path).restore({"empty": np.ones((0, 3)), "w": np.zeros(3)}, part="train").tree
    np.testing.assert_array_equal(tree["w"], np.ones(3))
    assert tree["empty"].shape == (0, 3)
    assert sum(array.size for array in read[-1]["leaves"].values()) == 3 + 1, "and the one that marks its place"


def test_a_checkpoint_is_found_and_refused_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_all(tmp_path, [1, 2])
    monkeypatch.delattr(Checkpoints, "_read_arrays")
    template = jax.eval_shape(lambda: make_state()["train"])
    found = Checkpoints(tmp_path).restore(template, part="train", read=False)
    assert (found.update, found.tree, found.metadata) == (2, template, {"update": 2})
    with pytest.raises(CheckpointError, match=r"has a leaf \['big'\]"):
        Checkpoints(tmp_path).restore({"train": template}, read=False)


def test_saving_copies_the_tree_once_and_restoring_copies_it_to_the_device_alone(tmp_path: Path) -> None:
    """A replay buffer may be most of the memory there is. NumPy's arrays are counted here, JAX's and Orbax' are not."""
    size = 32 * 2**20
    tree = {"store": jnp.zeros(size, jnp.uint8)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"first": 1}, {})  # what is imported and made once
        checkpoints.wait()
        tracemalloc.start()
        try:
            checkpoints.save(2, tree, {})
            checkpoints.wait()
            saving = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            restored = checkpoints.restore(tree)
            restoring = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert size < saving < 1.5 * size
    assert restoring < 0.5 * size
    assert params_digest(restored.tree) == params_digest(tree)


def test_the_tree_may_be_donated_and_overwritten_while_it_is_saved(tmp_path: Path) -> None:
    device, host = jnp.arange(100_000.0), np.arange(100_000.0)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"device": device, "host": host}, {})
        jax.jit(lambda x: x * 0, donate_argnums=0)(device).block_until_ready()
        host[:] = 0
        checkpoints.wait()
        tree = checkpoints.restore({"device": jnp.zeros(100_000), "host": np.zeros(100_000)}).tree
    np.testing.assert_array_equal(tree["device"], np.arange(100_000.0))
    np.testing.assert_array_equal(tree["host"], np.arange(100_000.0))


def test_the_newest_and_the_best_stay(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for update, score in [(1, 1.0), (2, 9.0), (3, 3.0), (4, float("nan")), (5, None)]:
            checkpoints.save(update, {"x": update}, {}, score)
        checkpoints.wait()
        assert checkpoints.updates() == [2, 4, 5]
        assert checkpoints.best() == 2
    with Checkpoints(tmp_path, keep=2) as checkpoints:  # scores are read again from disk
        checkpoints.save(6, {"x": 6}, {}, 8.0)
        checkpoints.wait()
        assert checkpoints.updates() == [2, 5, 6]
        assert checkpoints.restore({"x": 0}, update=checkpoints.best()).tree == {"x": 2}


def test_saving_an_update_again_replaces_it(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"x": 1}, {})
        checkpoints.save(1, {"x": 2}, {})
        assert checkpoints.restore({"x": 0}).tree == {"x": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["1"]


def test_metadata_is_read_without_the_arrays(tmp_path: Path) -> None:
    save_all(tmp_path, [1, 2])
    damage(tmp_path / "2" / "leaves", "delete")
    assert Checkpoints(tmp_path).metadata() == {"update": 2}
    assert Checkpoints(tmp_path).metadata(1) == {"update": 1}


def test_metadata_that_json_cannot_hold_fails_at_once(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(TypeError):
        checkpoints.save(1, {"x": 1}, {"array": np.zeros(3)})


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def damage(path: Path, how: str) -> None:
    rng = random.Random(0)
    for file in files(path):
        data = bytearray(file.read_bytes())
        if how == "delete":
            file.unlink()
        elif how == "truncate":
            file.write_bytes(data[: len(data) // 2])
        elif data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            file.write_bytes(data)


@pytest.mark.parametrize("how", ["delete", "truncate", "flip"])
@pytest.mark.parametrize("where", ["header", "leaves", "SHA256SUMS", "."])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path, how: str, where: str) -> None:
    save_all(tmp_path, [10, 20])
    target = tmp_path / "20" / where
    if target.is_file():  # damage() looks below directories
        other = tmp_path / "aside"
        other.mkdir()
        target.rename(other / where)
        damage(other, how)
        if (other / where).exists():
            (other / where).rename(target)
        other.rmdir()
    else:
        damage(target, how)
    restored = Checkpoints(tmp_path).restore(STATE)
    assert restored.update == 10
    assert params_digest(restored.tree) == params_digest(STATE)
    (note,) = restored.notes
    assert note.startswith("checkpoint 20 cannot be read (")
    assert "\n" not in note
    unread = Checkpoints(tmp_path).restore(STATE, read=False)
    assert (unread.update, unread.notes) == (10, [note])


def test_one_flipped_bit_in_any_file_is_noticed(tmp_path: Path) -> None:
    save_all(tmp_path, [10, 20])
    rng = random.Random(1)
    for file in files(tmp_path / "20"):
        data = file.read_bytes()
        if not data:
            continue
        altered = bytearray(data)
        altered[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(altered)
        assert Checkpoints(tmp_path).restore(STATE).update == 10, file
        file.write_bytes(data)
    assert Checkpoints(tmp_path).restore(STATE).update == 20


def test_after_falling_back_the_run_goes_on_and_the_damaged_one_goes(tmp_path: Path) -> None:
    save_all(tmp_path, [10, 20])
    damage(tmp_path / "20", "truncate")
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        assert checkpoints.restore(STATE).update == 10
        checkpoints.save(15, STATE, {"update": 15})
        checkpoints.wait()
        assert checkpoints.updates() == [15]
        assert checkpoints.restore(STATE).update == 15


def test_no_checkpoint_and_no_readable_one_are_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        Checkpoints(tmp_path / "missing").restore(STATE)
    with pytest.raises(CheckpointError, match="no checkpoint"):
        Checkpoints(tmp_path / "missing").metadata()
    save_all(tmp_path, [1, 2])
    damage(tmp_path, "truncate")
    with pytest.raises(CheckpointError, match=r"checkpoint 2 cannot be read .*; checkpoint 1 cannot be read"):
        Checkpoints(tmp_path).restore(STATE)


def test_a_state_of_another_shape_is_an_error_not_a_reason_to_go_back(tmp_path: Path) -> None:
    save_all(tmp_path, [1, 2])
    with pytest.raises(CheckpointError, match=r"\['big'\] is int64\[\].*needs float32\[2\]"):
        Checkpoints(tmp_path).restore({**STATE, "big": jnp.zeros(2)})


def test_a_save_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    checkpoints = Checkpoints(tmp_path / "file" / "checkpoints")
    checkpoints.save(1, {"x": 1}, {})
    with pytest.raises(CheckpointError, match="could be written"):
        checkpoints.wait()
    checkpoints.close()


SAVE_FOR_EVER = """
import sys
import tracemalloc
from pathlib import Path
import numpy as np
from podium.runs.checkpoint import Checkpoints
checkpoints = Checkpoints(Path(sys.argv[1]), keep=2)
for update in range(1, 10_000):
    checkpoints.save(update, {"x": np.full(300_000, update), "update": update}, {"update": update}, score=update % 3)
    print(update, flush=True)
"""


@pytest.mark.parametrize("lines", [2, 5, 6])
def test_sigkill_in_the_middle_of_a_save_leaves_a_whole_checkpoint(tmp_path: Path, lines: int) -> None:
    command = [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = [int(process.stdout.readline()) for _ in range(lines)]
            # The save that was announced last is under way: it is handed to the thread before the line is printed.
        finally:
            os.kill(process.pid, signal.SIGKILL)
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        restored = checkpoints.restore({"x": np.zeros(300_000, np.int64), "update": 0})
        assert restored.notes == []
        assert restored.update >= said[-1] - 1  # every save but the last had been waited for
        assert restored.metadata == {"update": restored.update}
        assert restored.tree["update"] == restored.update
        assert (restored.tree["x"] == restored.update).all()
        checkpoints.save(restored.update + 1, restored.tree, {})
        checkpoints.wait()
        assert all(entry.name.isdecimal() for entry in tmp_path.iterdir()), "leftovers of the killed save are cleared"
