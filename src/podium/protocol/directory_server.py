"""The directory over ZeroMQ: answers renewals, and tells all memberships at once when something changes."""

import math
import threading
import time
from contextlib import ExitStack
from typing import NamedTuple, Self

import msgspec
import zmq

from podium.protocol.directory import RENEWALS, Directory, Renewal
from podium.protocol.run_keys import RunKeys, authenticated, secure_server
from podium.protocol.wakeup import Wakeup

BATCH = 1000  # renewals taken before the others are told what they changed


class _Client(NamedTuple):
    roles: tuple[str, ...] | None  # that it wants to know of
    heard: float
    told: tuple[int, bool]  # epoch and stop


class DirectoryServer:
    """A thread that serves a directory to those who have the run's keys.

    with DirectoryServer(directory, keys, host) as server:
        server.endpoint          # tcp://HOST:PORT, for `podium.protocol.membership.connect`
    """

    def __init__(self, directory: Directory, keys: RunKeys, host: str) -> None:
        self._directory = directory
        self.malformed = 0  # messages that were not a renewal: counted, and not answered
        self._clients: dict[bytes, _Client] = {}
        self._closing = False
        with ExitStack() as stack:
            self._wakeup = Wakeup()
            stack.callback(self._wakeup.close)
            context = stack.enter_context(zmq.Context())
            stack.enter_context(authenticated(context, keys))
            socket = stack.enter_context(context.socket(zmq.ROUTER))
            socket.linger = 0
            secure_server(socket, keys)
            self.endpoint = f"tcp://{host}:{socket.bind_to_random_port(f'tcp://{host}')}"
            stack.callback(directory.watch(self._wakeup.wake))
            self._thread = threading.Thread(target=self._serve, args=(socket,), name="directory", daemon=True)
            self._thread.start()
            self._resources = stack.pop_all()

    def close(self) -> None:
        """Twice is harmless."""
        self._closing = True
        self._wakeup.wake()
        self._thread.join()
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, socket: zmq.Socket) -> None:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wakeup.fileno(), zmq.POLLIN)
        told = -1
        while not self._closing:
            ready = dict(poller.poll(math.ceil(1000 * self._directory.lease_s / RENEWALS)))
            if self._wakeup.fileno() in ready:
                self._wakeup.clear()
            if socket in ready:
                self._receive(socket)
            if (epoch := self._directory.epoch) != told:  # also sees leases that have run out
                told = epoch
                self._tell(socket)

    def _receive(self, socket: zmq.Socket) -> None:
        for _ in range(BATCH):
            try:
                client, *frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                (frame,) = frames
                renewal = _RENEWAL.decode(frame)
            except (ValueError, msgspec.MsgspecError):
                self.malformed += 1
                continue
            news = self._directory.answer(renewal)
            roles = None if renewal.roles is None else tuple(renewal.roles)
            self._clients[client] = _Client(roles, time.monotonic(), (news.epoch, news.stop))
            socket.send_multipart([client, msgspec.msgpack.encode(news)])

    def _tell(self, socket: zmq.Socket) -> None:
        """Send news to those whom they concern. A ROUTER drops what is not read, and never blocks."""
        silent = time.monotonic() - 3 * self._directory.lease_s  # by then it has left, or thinks that we have
        self._clients = {name: client for name, client in self._clients.items() if client.heard > silent}
        news = {roles: self._directory.news(roles) for roles in {client.roles for client in self._clients.values()}}
        frames = {roles: msgspec.msgpack.encode(one) for roles, one in news.items()}
        for name, client in self._clients.items():
            now = news[client.roles].epoch, news[client.roles].stop
            if now != client.told:
                self._clients[name] = client._replace(told=now)
                socket.send_multipart([name, frames[client.roles]])


_RENEWAL = msgspec.msgpack.Decoder(Renewal)
