"""Gymnasium environments stepped in spawned processes, with shared memory between them and us.

Only one-byte commands and error texts go through pipes; observations and actions never do.
"""

import multiprocessing
import signal
import time
from collections.abc import Sequence
from ctypes import c_byte
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle
import numpy as np

from podium.core.errors import EnvError, EnvLostError, PodiumError
from podium.core.specs import EnvSpec
from podium.envs.buffers import Allocate, Arena, allocate_actions, allocate_step, measure, select_rows
from podium.envs.gymnasium_rows import GymnasiumRows, MakeEnv, WrapEnv, probe
from podium.envs.interface import HostEnv, TimeStep

RESET, STEP, RENDER, QUIT = b"r", b"s", b"p", b"q"
DONE, FAILED = b"d", b"f"
START_LIMIT_S = 120.0
CLOSE_LIMIT_S = 3.0


class ProcessesEnv(HostEnv):
    """B environments over a number of processes, for environments that are slow in Python.

    env = ProcessesEnv(lambda: gymnasium.make("CartPole-v1"), seeds=range(8), processes=2)
    env.reset()
    env.send(actions)    # returns at once
    step = env.recv()
    """

    def __init__(
        self,
        make: MakeEnv,
        seeds: Sequence[int],
        processes: int,
        wrap: WrapEnv | None = None,
        spec: EnvSpec | None = None,
        limit_s: float = 60.0,
    ) -> None:
        self.spec = probe(make, wrap) if spec is None else spec
        self.num_envs = len(seeds)
        self._limit_s = limit_s
        self._pending = False
        self._current = 0
        context = multiprocessing.get_context("spawn")
        size = measure(lambda allocate: cut_arrays(self.spec, self.num_rows, allocate))
        block = context.RawArray(c_byte, size)  # an unlinked file: nothing is left behind, whoever dies
        self._actions, self._steps = cut_arrays(self.spec, self.num_rows, Arena(block).allocate)
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        constructors = cloudpickle.dumps((make, wrap))
        bounds = np.linspace(0, self.num_envs, min(processes, self.num_envs) + 1).astype(int).tolist()
        self._slices = [slice(a, b) for a, b in pairwise(bounds)]
        try:
            for rows in self._slices:
                ours, theirs = context.Pipe()
                arguments = (theirs, block, constructors, self.spec, [int(s) for s in seeds], rows)
                process = context.Process(target=serve, args=arguments, daemon=True)
                process.start()
                theirs.close()
                self._processes.append(process)
                self._pipes.append(ours)
            self._gather("start", START_LIMIT_S)
        except BaseException:
            self.close()
            raise

    def reset(self) -> TimeStep:
        if self._pending:
            self.recv()
        self._command(RESET)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        if self._pending:
            raise EnvError("send was called twice without recv in between")
        np.copyto(self._actions, np.reshape(actions, self._actions.shape), casting="unsafe")
        self._command(STEP)

    def recv(self) -> TimeStep:
        if not self._pending:
            raise EnvError("recv was called without send")
        self._gather("step", self._limit_s)
        self._pending = False
        return self._steps[self._current]

    def render(self) -> np.ndarray:
        self._tell(0, RENDER)
        self._gather("render", self._limit_s, workers=[0])
        try:
            shape = np.frombuffer(self._pipes[0].recv_bytes(), np.int64)
            return np.frombuffer(self._pipes[0].recv_bytes(), np.uint8).reshape(shape)
        except (EOFError, ConnectionError):
            raise self._death(0) from None

    def close(self) -> None:
        for pipe in self._pipes:
            try:
                pipe.send_bytes(QUIT)
            except OSError:
                continue  # it is dead already
        deadline = time.monotonic() + CLOSE_LIMIT_S
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(CLOSE_LIMIT_S)
            process.close()
        for pipe in self._pipes:
            pipe.close()
        self._processes.clear()
        self._pipes.clear()

    def _command(self, command: bytes) -> None:
        self._current ^= 1
        message = command + bytes([self._current])
        for worker in range(len(self._pipes)):
            self._tell(worker, message)
        self._pending = True

    def _tell(self, worker: int, message: bytes) -> None:
        try:
            self._pipes[worker].send_bytes(message)
        except OSError:
            raise self._death(worker) from None

    def _gather(self, what: str, limit_s: float, workers: Sequence[int] | None = None) -> None:
        """Wait until each worker has answered."""
        chosen = range(len(self._pipes)) if workers is None else workers
        waiting = {self._pipes[worker]: worker for worker in chosen}
        deadline = time.monotonic() + limit_s
        while waiting:
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                names = " and ".join(self._name(worker) for worker in waiting.values())
                raise EnvLostError(f"{names} did not finish {what} within {limit_s:g} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                worker = waiting.pop(pipe)
                try:
                    answer = pipe.recv_bytes()
                except (EOFError, ConnectionError):
                    raise self._death(worker) from None
                if answer[:1] == FAILED:
                    raise EnvError(answer[1:].decode())

    def _name(self, worker: int) -> str:
        rows = self._slices[worker]
        return f"environment process {worker} (environments {rows.start} to {rows.stop - 1})"

    def _death(self, worker: int) -> EnvLostError:
        process = self._processes[worker]
        process.join(CLOSE_LIMIT_S)
        code = process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return EnvLostError(f"{self._name(worker)} died: {how}")


def cut_arrays(spec: EnvSpec, rows: int, allocate: Allocate) -> tuple[np.ndarray, list[TimeStep]]:
    """The shared arrays, cut in the same order on both sides: actions, and two steps."""
    actions = allocate_actions(spec.action, rows, allocate)
    return actions, [allocate_step(spec, rows, allocate) for _ in range(2)]


def serve(pipe: Connection, block: Any, constructors: bytes, spec: EnvSpec, seeds: list[int], chosen: slice) -> None:
    """The loop of a worker process: obey commands until told to quit, or until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    actions, steps = cut_arrays(spec, len(seeds), Arena(block).allocate)
    actions, steps = actions[chosen], [select_rows(step, chosen) for step in steps]
    rows = None
    try:
        make, wrap = cloudpickle.loads(constructors)
        rows = GymnasiumRows(make, seeds[chosen], spec, wrap, chosen.start)
        pipe.send_bytes(DONE)
        while (command := pipe.recv_bytes()) != QUIT:
            if command[:1] == RESET:
                rows.reset(steps[command[1]])
            elif command[:1] == STEP:
                rows.step(actions, steps[command[1]])
            else:
                send_picture(pipe, rows.render())
                continue
            pipe.send_bytes(DONE)
    except PodiumError as error:
        pipe.send_bytes(FAILED + str(error).encode())
    except (EOFError, ConnectionError):
        pass  # the parent is gone
    finally:
        if rows is not None:
            rows.close()


def send_picture(pipe: Connection, picture: np.ndarray) -> None:
    """Answer a render command: done, shape, pixels."""
    pipe.send_bytes(DONE)
    pipe.send_bytes(np.asarray(picture.shape, np.int64).tobytes())
    pipe.send_bytes(np.ascontiguousarray(picture, np.uint8).tobytes())
