"""ZeroMQ sockets as streams use them: authenticated, bounded, aware of who is gone, never waiting without a limit."""

import errno
import select
import threading
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Literal

import zmq

from podium.core.errors import StreamError
from podium.protocol.run_keys import RunKeys, secure_client, secure_server
from podium.protocol.wakeup import Wakeup

Part = bytes | memoryview
Outcome = Literal["sent", "full", "gone"]

TICK = 0.02  # seconds after which somebody looks after a socket that its owner does not use
ZERO_COPY = 1 << 17  # bytes from which sending the caller's memory is cheaper than copying it
SLACK = 1 << 10  # bytes that encryption and framing may add
# As plain integers: arithmetic with ZeroMQ's enumerations takes longer than sending a message.
NOBLOCK, SNDMORE, _POLLIN, _EVENTS = int(zmq.NOBLOCK), int(zmq.SNDMORE), int(zmq.POLLIN), int(zmq.EVENTS)
_OPTIONS = {
    zmq.LINGER: 0,
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 30,
    zmq.TCP_KEEPALIVE_INTVL: 10,
    zmq.TCP_KEEPALIVE_CNT: 3,
    zmq.HEARTBEAT_IVL: 5_000,
    zmq.HEARTBEAT_TIMEOUT: 20_000,
    zmq.HEARTBEAT_TTL: 20_000,
    zmq.HANDSHAKE_IVL: 10_000,
    zmq.CONNECT_TIMEOUT: 5_000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2_000,
}


def _open(context: zmq.Context, kind: int, largest: int, depth: int) -> zmq.Socket:
    socket = context.socket(kind)
    for option, value in _OPTIONS.items():
        socket.setsockopt(option, value)
    socket.setsockopt(zmq.MAXMSGSIZE, largest + SLACK)
    socket.setsockopt(zmq.SNDHWM, depth)
    socket.setsockopt(zmq.RCVHWM, depth)
    return socket


def dealer(context: zmq.Context, keys: RunKeys, endpoint: str, largest: int, depth: int) -> zmq.Socket:
    """A client's socket, which connects by itself, again and again."""
    socket = _open(context, zmq.DEALER, largest, depth)
    secure_client(socket, keys)
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        raise StreamError(f"cannot connect to {endpoint}: {error}") from error
    return socket


def readable(descriptors: Sequence[int], timeout: float) -> list[int]:
    """Which of them can be read, after at most so many seconds."""
    if max(descriptors) < 1024:  # select knows no more, but waits for less than a millisecond
        return select.select(descriptors, (), (), timeout)[0]
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(timeout * 1000)]


def descriptor_of(socket: zmq.Socket) -> int:
    """Becomes readable when something may have come. Only `has_input` tells whether it has, and clears it."""
    return int(socket.getsockopt(zmq.FD))


def has_input(socket: zmq.Socket) -> bool:
    """Whether a message can be received."""
    return bool(int(socket.get(_EVENTS)) & _POLLIN)


def receive_parts(socket: zmq.Socket, most: int) -> list[memoryview]:
    """The parts of a message, at most one more than `most`: further ones are dropped as they come."""
    frame = socket.recv(NOBLOCK, copy=False)
    parts = [frame.buffer]
    while frame.more:
        frame = socket.recv(NOBLOCK, copy=False)
        if len(parts) <= most:
            parts.append(frame.buffer)
    return parts


def send_part(socket: zmq.Socket, part: Part | zmq.Frame, flags: int = NOBLOCK) -> None:
    """Without waiting; a large part is sent from where it is, and must stay as it is until it has arrived."""
    socket.send(part, flags, copy=len(part) < ZERO_COPY)


@dataclass(frozen=True)
class Listening:
    """Where the servers' ends of a transport listen."""

    context: zmq.Context
    keys: RunKeys
    host: str


class Router:
    """A server's socket that several threads may use, and that is looked after when none of them does.

    Whoever uses the socket holds `lock`, only for moments: nobody waits with it. An owner that waits for messages does
    so in `wait`. When it does not come back for long, a thread of the router's own calls `serve`, every `TICK` seconds
    or as messages come, so that clients are answered. It costs the owner's messages nothing: it sleeps while `used` is
    fresh.
    """

    def __init__(self, listening: Listening, largest: int, depth: int, serve: Callable[[], None]) -> None:
        self.lock = threading.Lock()
        self.used = 0.0  # when the owner last served the socket itself
        self.closed = False
        self._serve = serve
        self._socket = _open(listening.context, zmq.ROUTER, largest, depth)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # sending to who is gone is an error, not silence
        try:
            secure_server(self._socket, listening.keys)
            self._socket.bind(f"tcp://{listening.host}:*")
        except ValueError:
            self._socket.close()
            raise
        except zmq.ZMQError as error:
            self._socket.close()
            raise StreamError(f"cannot listen at {listening.host}: {error}") from error
        self.endpoint = bytes(self._socket.getsockopt(zmq.LAST_ENDPOINT)).decode()
        self._descriptor = descriptor_of(self._socket)
        self._empty = False  # nothing to receive was left, and what comes now can be waited for
        self.sleeping = False  # the owner waits for messages: it does nothing else soon
        self._wakeup = Wakeup()
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._attend, name=f"podium {self.endpoint}", daemon=True)

    def start(self) -> None:
        """From now on `serve` may be called: the owner is complete."""
        self._thread.start()

    def _attend(self) -> None:
        while not self._leaving.is_set():
            if self.sleeping or time.monotonic() - self.used < TICK:
                self._leaving.wait(TICK)
            else:
                readable((self._descriptor,), TICK)
                self._serve()

    def receive(self, most: int) -> tuple[bytes, list[memoryview]] | None:
        """Under the lock: who sent the next message, and its parts; None if there is none."""
        try:
            route = self._socket.recv(NOBLOCK)
        except zmq.Again:
            self._empty = True
            return None
        return route, receive_parts(self._socket, most)

    def send(self, route: bytes, part: Part | zmq.Frame) -> Outcome:
        """Under the lock: send without waiting. Full: this client does not read. Gone: there is no way to it."""
        self._empty = False
        try:
            self._socket.send(route, SNDMORE | NOBLOCK)
            send_part(self._socket, part)
        except zmq.Again:
            return "full"
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return "gone"
        return "sent"

    def pending(self) -> bool:
        """Under the lock: whether a message can be received. Sending may swallow the signal that one has come."""
        return has_input(self._socket)

    def wait(self, timeout: float, ready: Sized) -> None:
        """Sleep until a message may have come, or something is `ready`, or the time is over."""
        with self.lock:
            if self.closed or ready or (not self._empty and self.pending()):
                return
            self.sleeping = True
        try:
            if self._wakeup.fileno() in readable((self._descriptor, self._wakeup.fileno()), timeout):
                self._wakeup.clear()
        finally:
            with self.lock:
                self.sleeping = False
                if self.closed:
                    self._wakeup.close()

    def wake(self) -> None:
        """Under the lock: end the owner's `wait`, if it is in one."""
        if self.sleeping:
            self._wakeup.wake()

    def close(self) -> None:
        """Leave. Twice is harmless; a wait in another thread ends."""
        self._leaving.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.wake()
            self._socket.close(linger=0)
            if not self.sleeping:
                self._wakeup.close()
