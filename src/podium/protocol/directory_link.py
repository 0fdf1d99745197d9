"""Ways from a membership to the directory: in the same process, or over ZeroMQ."""

import contextlib
import math
import queue
from abc import ABC, abstractmethod

import msgspec
import zmq

from podium.protocol.directory import Directory, News, Renewal
from podium.protocol.run_keys import RunKeys, secure_client
from podium.protocol.wakeup import Wakeup


class DirectoryLink(ABC):
    """A way to the directory. All but `wake` is used by one thread."""

    @abstractmethod
    def send(self, renewal: Renewal) -> None:
        """Say it, if anybody listens."""

    @abstractmethod
    def receive(self, timeout: float) -> News | None:
        """What the directory says; None after `timeout` seconds, or when woken."""

    @abstractmethod
    def wake(self) -> None:
        """From any thread: let a waiting `receive` return."""

    @abstractmethod
    def close(self) -> None:
        """Leave."""


class LocalLink(DirectoryLink):
    """To a directory in the same process."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._news: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._known: tuple[list[str] | None, int] = None, -1
        self._unwatch = directory.watch(self.wake)

    def send(self, renewal: Renewal) -> None:
        self._known = renewal.roles, renewal.epoch
        self._news.put(self._directory.answer(renewal))

    def receive(self, timeout: float) -> News | None:
        try:
            return self._news.get(timeout=timeout) or self._directory.news(*self._known)
        except queue.Empty:
            return None

    def wake(self) -> None:
        self._news.put(None)

    def close(self) -> None:
        self._unwatch()


class SocketLink(DirectoryLink):
    """To a directory's server."""

    def __init__(self, endpoint: str, keys: RunKeys) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 200
        self._socket.sndtimeo = 0
        self._socket.immediate = 1  # without a connection nothing is queued: the server never hears what is long past
        secure_client(self._socket, keys)
        self._socket.connect(endpoint)
        self._wakeup = Wakeup()
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakeup.fileno(), zmq.POLLIN)

    def send(self, renewal: Renewal) -> None:
        with contextlib.suppress(zmq.Again):  # not connected: the silence is what the membership counts
            self._socket.send(msgspec.msgpack.encode(renewal))

    def receive(self, timeout: float) -> News | None:
        ready = dict(self._poller.poll(math.ceil(1000 * timeout)))
        if self._wakeup.fileno() in ready:
            self._wakeup.clear()
        return msgspec.msgpack.decode(self._socket.recv(), type=News) if self._socket in ready else None

    def wake(self) -> None:
        self._wakeup.wake()

    def close(self) -> None:
        self._socket.close()
        self._context.term()
        self._wakeup.close()
