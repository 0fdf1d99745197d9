"""Checkpoints of a run: written by a thread, whole or not at all, and read back bit for bit or not at all.

checkpoints/120/leaves       the arrays, by Orbax
checkpoints/120/header       JSON: the caller's metadata, and every leaf's name, shape and dtype
checkpoints/120/SHA256SUMS   of all files, checked before any of them is used
"""

import json
import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from podium.core.errors import CheckpointError
from podium.core.types import Tree
from podium.runs.checksums import verify_checksums, write_checksums
from podium.runs.leaves import Leaf, check_fit, copy_leaves, describe_leaves, params_digest, put_leaves

__all__ = ["Checkpoints", "Restored", "params_digest"]

LIMIT_S = 600.0
"""How long one checkpoint may take to be written."""
UNREADABLE = (OSError, ValueError, KeyError)
"""What checksums, Orbax and TensorStore raise over files that are missing, cut short or altered."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint read back; `notes` says which newer ones could not be, and why."""

    update: int
    tree: Tree
    metadata: dict[str, Any]
    notes: list[str] = field(default_factory=list)


class Checkpoints:
    """The checkpoints under one path: the newest `keep`, and the best by score.

    with Checkpoints(run.checkpoints, keep=3) as checkpoints:
        checkpoints.save(120, state, {"env_steps": 245_760}, score=mean_return)    # returns after a copy to the host
        ...
    restored = Checkpoints(run.checkpoints).restore(template=state)
    """

    def __init__(self, path: Path, keep: int = 3) -> None:
        self.path = path.absolute()
        self.keep = keep
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._scores: dict[int, float | None] = {}

    def updates(self) -> list[int]:
        """Updates that have a checkpoint, in order."""
        if not self.path.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.path.iterdir() if entry.name.isdecimal())

    def best(self) -> int | None:
        """The update with the highest score, the later of equals; None if none has a score."""
        scored = [(score, update) for update in self.updates() if (score := self._score(update)) is not None]
        return max(scored)[1] if scored else None

    def save(self, update: int, tree: Tree, metadata: Mapping[str, Any], score: float | None = None) -> None:
        """Copy the tree and let a thread write it. Waits for, and reports an error of, the save before."""
        self.wait()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
            self._thread.submit(_remove_leftovers, self.path)
        header = {
            "update": update,
            "score": None if score is None or not math.isfinite(score) else float(score),
            "metadata": dict(metadata),
            "leaves": [asdict(leaf) for leaf in describe_leaves(tree)],
        }
        header = json.loads(json.dumps(header))  # as it will be read, and a copy; what JSON has not fails here
        self._pending = self._thread.submit(self._write_or_clear, update, header, copy_leaves(tree))

    def wait(self) -> None:
        """Until the last save is on the disk; raises CheckpointError if it could not be written."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result(LIMIT_S)
        except TimeoutError:
            raise CheckpointError(f"a checkpoint in {self.path} took longer than {LIMIT_S:.0f} s to write") from None
        except UNREADABLE as error:
            raise CheckpointError(f"no checkpoint could be written in {self.path}: {_one_line(error)}") from error

    def close(self) -> None:
        """Wait, and end the thread. Calling it twice is harmless."""
        try:
            self.wait()
        finally:
            if self._thread is not None:
                self._thread.shutdown(wait=False)
                self._thread = None

    def restore(
        self, template: Tree, update: int | None = None, part: str | None = None, read: bool = True
    ) -> Restored:
        """Read the newest checkpoint that is whole (or only `update`) into a tree like the template.

        `part` reads one entry of a saved dict: `restore(params, part="params")`. Without `read` it finds, checks and
        refuses the same, but brings no array into memory: the tree is the template.
        """
        self.wait()
        notes: list[str] = []
        for candidate in [update] if update is not None else reversed(self.updates()):
            try:
                header = self._read_header(candidate)
                prefix = "" if part is None else f"[{part!r}]"
                stored = [(i, leaf) for i, leaf in enumerate(_to_leaves(header)) if leaf.path.startswith(prefix)]
                leaves = [Leaf(leaf.path.removeprefix(prefix), leaf.shape, leaf.dtype, leaf.weak) for _, leaf in stored]
                check_fit(leaves, template)
                verify_checksums(self.path / str(candidate))
                arrays = self._read_arrays(candidate, header, [i for i, _ in stored]) if read else None
            except UNREADABLE as error:
                notes.append(f"checkpoint {candidate} cannot be read ({_one_line(error)})")
                continue
            tree = template if arrays is None else put_leaves(template, leaves, arrays)
            return Restored(candidate, tree, header["metadata"], notes)
        raise CheckpointError(f"{self.path} has no checkpoint to go on from{': ' if notes else ''}{'; '.join(notes)}")

    def metadata(self, update: int | None = None) -> dict[str, Any]:
        """What was saved beside the arrays of `update`, or of the newest checkpoint whose header is whole."""
        self.wait()
        for candidate in [update] if update is not None else reversed(self.updates()):
            try:
                return self._read_header(candidate)["metadata"]
            except UNREADABLE:
                continue
        raise CheckpointError(f"{self.path} has no checkpoint whose metadata can be read")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_or_clear(self, update: int, header: dict[str, Any], arrays: list[np.ndarray]) -> None:
        """What could not be written whole is removed: on a full disk, its room is needed to say so."""
        try:
            self._write(update, header, arrays)
        except BaseException:
            _remove_leftovers(self.path)
            raise

    def _write(self, update: int, header: dict[str, Any], arrays: list[np.ndarray]) -> None:
        import orbax.checkpoint as ocp

        for leaf, array in zip(header["leaves"], arrays, strict=True):
            leaf["stored"] = [array.dtype.name, list(array.shape)]
        draft = self.path / f"saving-{update}"
        with _without_log(), ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            checkpointer.save(
                draft,
                args=ocp.args.Composite(
                    leaves=ocp.args.StandardSave(_storable(arrays)), header=ocp.args.JsonSave(header)
                ),
            )
        write_checksums(draft)
        self._remove(update)
        draft.rename(self.path / str(update))
        self._scores[update] = header["score"]
        self._prune(update)

    def _prune(self, newest: int) -> None:
        """Later updates than the one just saved go too: their run was left when an earlier one was restored."""
        for update in self.updates():
            if update > newest:
                self._remove(update)
        kept = {*self.updates()[-self.keep :], self.best()}
        for update in self.updates():
            if update not in kept:
                self._remove(update)

    def _remove(self, update: int) -> None:
        """Rename first: a kill in between leaves no half of a checkpoint under its name."""
        doomed = self.path / f"removed-{update}"
        if (self.path / str(update)).exists():
            (self.path / str(update)).rename(doomed)
            shutil.rmtree(doomed)
        self._scores.pop(update, None)

    def _score(self, update: int) -> float | None:
        if update not in self._scores:
            try:
                self._scores[update] = self._read_header(update)["score"]
            except UNREADABLE:
                return None
        return self._scores[update]

    def _read_header(self, update: int) -> dict[str, Any]:
        import orbax.checkpoint as ocp

        verify_checksums(self.path / str(update), under="header")
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            args = ocp.args.Composite(header=ocp.args.JsonRestore())
            return checkpointer.restore(self.path / str(update), args=args)["header"]

    def _read_arrays(self, update: int, header: dict[str, Any], wanted: Sequence[int]) -> list[np.ndarray]:
        """Those leaves and no others: beside parameters that are wanted may lie a replay buffer that is not."""
        import orbax.checkpoint as ocp

        # Arrays without memory: those without elements were not stored, the others tell Orbax what to read.
        stored = {str(i): header["leaves"][i]["stored"] for i in wanted}
        like = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, (dtype, shape) in stored.items()}
        item = {"podium": np.ones((), np.int64)} | {name: array for name, array in like.items() if array.size}
        how = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in item}
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
            restore = ocp.args.PyTreeRestore(item=item, restore_args=how, partial_restore=True)
            found = checkpointer.restore(self.path / str(update), args=ocp.args.Composite(leaves=restore))["leaves"]
        return [np.asarray(found.get(name, array)) for name, array in like.items()]


class _Still(np.ndarray):
    """An array that nobody changes any more. Orbax copies what it is given, and a replay buffer may be most of the
    memory there is: it was copied already.
    """

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self


def _storable(arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Orbax takes neither arrays without elements, which the header tells how to make anew, nor an empty dict."""
    kept = {str(i): array.view(_Still) for i, array in enumerate(arrays) if array.size}
    return {"podium": np.ones((), np.int64)} | kept


@contextmanager
def _without_log() -> Iterator[None]:
    """Keep Orbax from logging the traceback of an error that it raises as well: `wait` tells it in one line."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def _to_leaves(header: dict[str, Any]) -> list[Leaf]:
    return [Leaf(leaf["path"], tuple(leaf["shape"]), leaf["dtype"], leaf["weak"]) for leaf in header["leaves"]]


def _remove_leftovers(path: Path) -> None:
    """Clear what a killed process left: only a writer does, a reader may look on while another writes."""
    for entry in path.glob("*") if path.is_dir() else ():
        if entry.name.startswith(("saving-", "removed-")):
            shutil.rmtree(entry)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
