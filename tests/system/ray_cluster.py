"""A real Ray cluster on test machines: a head and nodes, each with its own session folder, under one token."""

import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from system.machines import HOME, Machine

PORT = 6379
JOBS_PORT = 8265
START_S = 120.0


class RayCluster:
    """Starts Ray on machines, the first of which is the head.

    cluster = RayCluster(tmp_path)
    cluster.start_head(head, cpus=0)
    cluster.start_node(worker, cpus=2)
    head.run([...], env=cluster.env())
    """

    def __init__(self, directory: Path) -> None:
        self.token = directory / "token"
        self.token.write_text(secrets.token_hex(32))
        self.token.chmod(0o600)
        self._logs = directory
        self.address = ""
        self.jobs = ""

    def env(self) -> dict[str, str]:
        """What a process on a machine needs to be part of the cluster."""
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token),
            "RAY_TMPDIR": f"{HOME}/ray",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
        }

    def start_head(self, machine: Machine, cpus: int, dashboard: bool = False, env: Mapping[str, str] = {}) -> None:
        """The first node, which knows all others."""
        self.address, self.jobs = f"{machine.address}:{PORT}", f"{machine.address}:{JOBS_PORT}"
        page = ["--dashboard-host", machine.address, "--dashboard-port", str(JOBS_PORT)] if dashboard else []
        asked = ["--head", "--port", str(PORT), f"--include-dashboard={dashboard}", *page]
        self._start(machine, cpus, asked, env)

    def start_node(self, machine: Machine, cpus: int, env: Mapping[str, str] = {}) -> None:
        """Another one."""
        self._start(machine, cpus, ["--address", self.address], env)

    def alive(self, machine: Machine) -> int:
        """How many nodes the cluster has, asked from one of them."""
        code = "import ray; ray.init(address='auto', log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
        told = machine.run([sys.executable, "-c", code], self.env())
        assert told.returncode == 0, told.stderr
        return int(told.stdout.split()[-1])

    def _start(self, machine: Machine, cpus: int, asked: list[str], env: Mapping[str, str]) -> None:
        command = [str(Path(sys.executable).parent / "ray"), "start", *asked, "--node-ip-address", machine.address]
        command += ["--num-cpus", str(cpus), "--object-store-memory", str(10**8), "--disable-usage-stats", "--block"]
        command += ["--temp-dir", f"{HOME}/ray"] if "--head" in asked else []
        log = self._logs / f"ray-{machine.name}.log"
        with log.open("ab") as output:
            started = machine.start(
                command, {**self.env(), **env}, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        deadline = time.monotonic() + START_S
        while "--block" not in (text := log.read_text()) and "Ray runtime started" not in text:
            assert started.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.1)
