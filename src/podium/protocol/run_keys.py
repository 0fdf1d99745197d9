"""Keys of one run: every TCP end is authenticated and encrypted (CURVE); a peer without a key gets nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import zmq
from zmq.auth.thread import ThreadAuthenticator

DOMAIN = "podium"


@dataclass(frozen=True)
class RunKeys:
    """Fresh for each run: a key pair for the ends that bind, and one for the ends that connect.

    keys = RunKeys.generate()
    secure_server(socket, keys); secure_client(socket, keys.for_clients())
    """

    server_public: str
    client_public: str
    client_secret: str = field(repr=False)
    server_secret: str | None = field(default=None, repr=False)

    @classmethod
    def generate(cls) -> Self:
        """New keys of libsodium's."""
        (server_public, server_secret), (client_public, client_secret) = zmq.curve_keypair(), zmq.curve_keypair()
        return cls(*(key.decode() for key in (server_public, client_public, client_secret, server_secret)))

    def for_clients(self) -> Self:
        """Without the secret that only those who bind need."""
        return replace(self, server_secret=None)


def secure_server(socket: zmq.Socket, keys: RunKeys) -> None:
    """Before `bind`: take only clients of this run. Needs `authenticated` around it, in the same context."""
    if keys.server_secret is None:
        raise ValueError("these are the keys of a client: they cannot bind")
    socket.curve_server = True
    socket.curve_secretkey = keys.server_secret.encode()
    socket.curve_publickey = keys.server_public.encode()
    socket.zap_domain = DOMAIN.encode()


def secure_client(socket: zmq.Socket, keys: RunKeys) -> None:
    """Before `connect`: talk only to the server of this run."""
    socket.curve_serverkey = keys.server_public.encode()
    socket.curve_publickey = keys.client_public.encode()
    socket.curve_secretkey = keys.client_secret.encode()


class _Allowed:
    """Answers ZeroMQ's question whether a client's key is known."""

    def __init__(self, keys: RunKeys) -> None:
        self._key = keys.client_public.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether `key`, as z85 text, is the run's client key."""
        return key == self._key


@contextmanager
def authenticated(context: zmq.Context, keys: RunKeys) -> Iterator[None]:
    """While it lasts, servers of this context take clients with the run's key, and nobody else."""
    guard = ThreadAuthenticator(context)
    guard.start()
    try:
        guard.configure_curve_callback(DOMAIN, _Allowed(keys))
        yield
    finally:
        guard.stop()
