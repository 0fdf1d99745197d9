"""The machines that other tests run on: they are apart, and nothing of them is left."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.machines import Machine, Machines, require_machines

ECHO = """
import socket
server = socket.create_server(("0.0.0.0", 7000))
print("up", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(socket.gethostname().encode())
    connection.close()
"""
ASK = """
import socket, sys
print(socket.create_connection((sys.argv[1], 7000), timeout=1).makefile().read())
"""


@pytest.fixture
def pair() -> Iterator[list[Machine]]:
    require_machines()
    with Machines("alpha", "beta") as machines:
        yield machines


def ask(asker: Machine, name: str) -> subprocess.CompletedProcess:
    return asker.run([sys.executable, "-c", ASK, name])


def serve(machine: Machine) -> subprocess.Popen:
    server = machine.start([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert server.stdout is not None
    assert server.stdout.readline() == b"up\n"
    return server


def test_machines_reach_each_other_until_a_cable_is_cut_and_again_when_it_is_healed(pair: list[Machine]) -> None:
    alpha, beta = pair
    serve(alpha)
    assert ask(beta, "alpha").stdout == "alpha\n"
    alpha.cut()
    assert "timed out" in ask(beta, alpha.address).stderr
    alpha.heal()
    assert ask(beta, alpha.address).stdout == "alpha\n"


def test_each_has_its_own_hostname_processes_shared_memory_home_and_no_way_out(pair: list[Machine]) -> None:
    alpha, beta = pair
    alpha.run(["sh", "-c", "echo secret > /dev/shm/mine; echo secret > $HOME/mine"])
    told = beta.run(["sh", "-c", "hostname; ls /dev/shm $HOME; ip route"]).stdout
    assert "mine" not in told
    assert told.startswith("beta")
    assert "default" not in told
    assert (alpha.home / "mine").exists()


def test_power_off_ends_every_process_and_power_on_begins_anew(pair: list[Machine]) -> None:
    alpha, beta = pair
    server = serve(alpha)
    alpha.run(["sh", "-c", "echo kept > $HOME/disk; echo gone > /dev/shm/memory"])
    alpha.start(["sh", "-c", "setsid sleep 1000 & setsid python3 -c 'import time; time.sleep(1000)' & wait"])
    deadline = time.monotonic() + 30
    while len(pids := alpha.pids()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) >= 3
    alpha.power_off()
    assert server.returncode is not None
    while (left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.05)  # for their parents to reap them
    assert left == []
    alpha.power_on()
    assert alpha.pids() == []
    assert alpha.run(["sh", "-c", "cat $HOME/disk; ls /dev/shm"]).stdout == "kept\n"
    assert ask(beta, "alpha").returncode != 0


def test_nothing_is_left_of_machines_whose_test_has_failed() -> None:
    require_machines()
    machines = Machines("gamma")

    def fail() -> None:
        with machines as (gamma,):
            seen.append(gamma)
            gamma.start(["sleep", "1000"])
            raise RuntimeError

    seen: list[Machine] = []
    with pytest.raises(RuntimeError):
        fail()
    assert not seen[0].home.exists()
