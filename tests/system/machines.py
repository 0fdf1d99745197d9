"""Machines for tests, made of namespaces: each has its own network, processes, hostname, shared memory and home.

with Machines("head", "worker") as (head, worker):
    ray = head.start(["ray", "start", "--head", "--block"])
    worker.cut()                # its cable is pulled; `heal` puts it back
    worker.power_off()          # every process of it is gone at once

A switch (a bridge in a namespace of its own) joins them; nothing leads outside. What is left at the end is ended, and
`Machines.close` raises if something of a machine is still there.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

NEEDS = ("ip", "unshare", "nsenter", "setpriv")
SUBNET = "10.77.0"
END_S = 10.0
HOME = "/home/podium"


def require_machines() -> None:
    """Skip where namespaces cannot be made: in CI, a skip is a failure."""
    missing = [program for program in NEEDS if shutil.which(program) is None]
    if sys.platform != "linux" or os.geteuid() != 0 or missing:
        pytest.skip(f"machines need Linux, root and {', '.join(missing or NEEDS)}")


class Machine:
    """One host. `address` is the one that the others reach it at; `home` is its disk, which is `HOME` to its processes.

    The rest of the disk is that of the test itself, as if all hosts had the same image.
    """

    def __init__(self, name: str, switch: str, number: int, home: Path, hosts: Path) -> None:
        self.name, self.address, self.home = name, f"{SUBNET}.{number}", home
        self._hosts = hosts
        self._switch, self._namespace, self._cable = switch, f"{switch}-{number}", f"port{number}"
        self._started: list[subprocess.Popen] = []
        self._power: subprocess.Popen | None = None
        self._first = 0

    def plug_in(self) -> None:
        """Give it a network card and a cable to the switch, and start it."""
        switch = self._switch
        _ip("netns", "add", self._namespace)
        cable = "link", "add", "eth0", "netns", self._namespace, "type", "veth", "peer", "name", self._cable
        _ip(*cable, "netns", switch)
        _ip("-n", switch, "link", "set", self._cable, "master", "bridge", "up")
        _ip("-n", self._namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            _ip("-n", self._namespace, "link", "set", link, "up")
        self.power_on()

    def power_on(self) -> None:
        """Start its first process, which everything else on it ends with."""
        self.home.mkdir(exist_ok=True)
        boot = (
            f"hostname {self.name} && mount -t tmpfs -o size=2g tmpfs /dev/shm && "
            f"mount --bind {self._hosts} /etc/hosts && mount -t tmpfs tmpfs /home && mkdir {HOME} && "
            f"mount --bind {self.home} {HOME} && echo up && sleep infinity & wait"
        )
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--uts", "--ipc"]
        command = ["ip", "netns", "exec", self._namespace, *apart, "sh", "-c", boot]
        self._power = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert self._power.stdout is not None
        if self._power.stdout.readline() != b"up\n":
            raise RuntimeError(f"machine {self.name} did not start")
        children = Path(f"/proc/{self._power.pid}/task/{self._power.pid}/children").read_text()
        self._first = int(children.split()[0])

    @property
    def is_on(self) -> bool:
        """Whether it was started, and not powered off since."""
        return self._power is not None

    def start(self, command: Sequence[str], env: Mapping[str, str] | None = None, **options) -> subprocess.Popen:
        """Start a process on it. It has this machine's HOME, and dies with the handle's process."""
        enter = ["nsenter", "-t", str(self._first), "--net", "--mount", "--pid", "--uts", "--ipc"]
        own = {"HOME": HOME, "PYTHONUNBUFFERED": "1", **(env or {})}
        settings = [f"{key}={value}" for key, value in own.items()]
        process = subprocess.Popen([*enter, "setpriv", "--pdeathsig", "KILL", "env", *settings, *command], **options)
        self._started.append(process)
        return process

    def run(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess:
        """Run a process to its end, at most `timeout` seconds."""
        process = self.start(command, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{command} on {self.name} took over {timeout:g} s:\n{out}\n{err}") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def signal(self, process: subprocess.Popen, signum: signal.Signals) -> None:
        """Send a signal to what was started: the handle's own process is `nsenter`, which passes none on."""
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signum)

    def power_off(self) -> None:
        """End all its processes at once, without a word to anyone."""
        if self._power is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._first or self._power.pid, signal.SIGKILL)
        for process in (self._power, *self._started):
            process.wait(END_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        self._started.clear()
        self._power, self._first = None, 0

    def cut(self) -> None:
        """Pull the cable: packets are lost, connections stay open."""
        _ip("-n", self._switch, "link", "set", self._cable, "down")

    def heal(self) -> None:
        """Put the cable back."""
        _ip("-n", self._switch, "link", "set", self._cable, "up")

    def pids(self) -> list[int]:
        """What runs on it, as this test's own namespace numbers it; the two processes that hold it up are left out."""
        here = os.readlink(f"/proc/{self._first}/ns/pid")
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if os.readlink(entry / "ns" / "pid") == here and (entry / "comm").read_text() != "sleep\n":
                        found.append(int(entry.name))
        return [pid for pid in found if pid != self._first]

    def remove(self) -> None:
        """Power it off and take it out of the switch."""
        self.power_off()
        with contextlib.suppress(subprocess.CalledProcessError):  # it was never plugged in
            _ip("netns", "del", self._namespace)


class Machines:
    """Some machines on one switch, by name; each finds the others by name and by address."""

    def __init__(self, *names: str) -> None:
        self._switch = f"podium-{os.getpid()}-{time.monotonic_ns() % 10**6}"
        self._home = Path(tempfile.mkdtemp(prefix="pm-"))  # short: a socket's path has 107 characters
        self._names = names
        self.all: list[Machine] = []

    def __enter__(self) -> list[Machine]:
        hosts = self._home / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{SUBNET}.{i} {name}" for i, name in enumerate(self._names, 1))]
        hosts.write_text("\n".join(lines) + "\n")
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge", "up")
            for number, name in enumerate(self._names, 1):
                self.all.append(Machine(name, self._switch, number, self._home / name, hosts))
                self.all[-1].plug_in()
        except BaseException:
            self.close()
            raise
        return self.all

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove all of it."""
        for machine in self.all:
            machine.remove()
        self.all.clear()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self._switch)
        shutil.rmtree(self._home, ignore_errors=True)
        left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        assert self._switch not in left, f"a namespace is left: {left}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, ["ip", *arguments], done.stdout, done.stderr)
