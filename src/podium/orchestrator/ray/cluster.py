"""Connects to a Ray cluster, or starts one on this machine, with its authentication said explicitly."""

import ipaddress
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from podium.core.errors import ConfigError

NAMESPACE = "podium"
HERE = "ray"
TOKENS = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


@contextmanager
def connected(address: str) -> Iterator[str]:
    """While it lasts, this process is a driver of the cluster at `HOST:PORT`; `ray` starts one on this machine.

    Yields the address of this node. Raises ConfigError where there is no such cluster, or no token for it.
    """
    require_token(address)
    options = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "configure_logging": False,
    }
    if address == HERE:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of jax: Ray starts processes, and executes them at once
            ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", **options)
    else:
        try:
            ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"--on {address}: cannot join this Ray cluster from here: {reason}") from None
    try:
        yield ray.util.get_node_ip_address()
    finally:
        ray.shutdown()


def require_token(address: str) -> None:
    """Off loopback, a Ray cluster is used with its token only: one without a token runs any code that is sent to it."""
    host, _, port = address.rpartition(":")
    if address == HERE:
        os.environ["RAY_AUTH_MODE"] = "disabled"  # it listens on loopback alone
        return
    if not host or not port.isdecimal():
        raise ConfigError(f"--on {address}: must be local, ray, or the HOST:PORT of a Ray cluster's head")
    if _is_loopback(host):
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        return
    mode, token, path = (os.environ.get(name) for name in TOKENS)
    if mode != "token":
        raise ConfigError(
            f"--on {address}: set RAY_AUTH_MODE=token, here and on the cluster: "
            "without a token, everyone who reaches the cluster can run code on it"
        )
    if not token and not Path(path or Path.home() / ".ray" / "auth_token").is_file():
        raise ConfigError(f"--on {address}: no token; set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that has it")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except OSError:
        raise ConfigError(f"--on {host}: there is no such host") from None
