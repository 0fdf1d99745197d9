"""Keys of a run: clients do not get the server's secret, and a stranger is not heard."""

from dataclasses import astuple

import pytest
import zmq

from podium.protocol.run_keys import RunKeys, authenticated, secure_client, secure_server


def test_every_run_has_keys_of_its_own():
    assert not set(astuple(RunKeys.generate())) & set(astuple(RunKeys.generate()))


def test_clients_do_not_get_the_servers_secret():
    keys = RunKeys.generate()
    assert keys.server_secret is not None
    assert keys.server_secret not in astuple(keys.for_clients())


def test_a_clients_keys_cannot_bind():
    with zmq.Context() as context, context.socket(zmq.PULL) as socket, pytest.raises(ValueError, match="cannot bind"):
        secure_server(socket, RunKeys.generate().for_clients())


@pytest.mark.parametrize("known", [True, False])
def test_whoever_has_the_runs_key_is_heard_and_nobody_else(known):
    keys, others = RunKeys.generate(), RunKeys.generate()
    stranger = RunKeys(keys.server_public, others.client_public, others.client_secret)
    with (
        zmq.Context() as context,
        authenticated(context, keys),
        context.socket(zmq.PULL) as server,
        context.socket(zmq.PUSH) as client,
    ):
        secure_server(server, keys)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        secure_client(client, keys.for_clients() if known else stranger)
        client.linger = 0
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"hello", zmq.NOBLOCK)
        assert bool(server.poll(30_000 if known else 300)) == known


def test_printing_keys_shows_no_secret() -> None:
    keys = RunKeys.generate()
    assert keys.client_secret not in repr(keys)
    assert str(keys.server_secret) not in repr(keys)
