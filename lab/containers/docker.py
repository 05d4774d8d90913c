"""The Docker daemon that the node-containers run on: the user's own if it answers, else one that the lab starts.

Everything that the lab makes carries the label `spark.lab`. It looks at, stops and removes nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.machines.host import on_path
from lab.place import shared
from lab.report import LabError, say, wait_for

LABEL = "spark.lab"
"""The label of everything that the lab makes on a daemon. Its value is the identity of the place."""

START_LIMIT_S = 60
STOP_LIMIT_S = 30
ANSWER_LIMIT_S = 20


@dataclass(frozen=True)
class Docker:
    """A daemon behind a unix socket, used through the docker program."""

    socket: Path

    def call(self, *arguments: str, stdin: str | None = None, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run one command, whatever its exit code. Raises LabError if it does not end within `limit_s` seconds."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
        # not the user's own configuration: every node would get its proxies
        environment["DOCKER_CONFIG"] = str(shared() / "docker-config")
        command = ["docker", "--host", f"unix://{self.socket}", *arguments]
        try:
            return subprocess.run(
                command, env=environment, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise LabError(f"docker {' '.join(arguments[:3])}: not within {limit_s:.0f} s") from None
        except FileNotFoundError:
            raise LabError("the docker program is not installed\n  way out: make setup") from None

    def run(self, *arguments: str, stdin: str | None = None, limit_s: float = 120) -> str:
        """Run one command and return its stdout. Raises LabError with Docker's message if it fails."""
        done = self.call(*arguments, stdin=stdin, limit_s=limit_s)
        if done.returncode != 0:
            raise LabError(f"docker {' '.join(arguments[:3])} failed: {done.stderr.strip()}")
        return done.stdout.strip()

    def ours(self, kind: str, identity: str | None = None) -> list[str]:
        """The names of what the lab made, for one place or for all. `kind`: container, network, volume or image."""
        arguments = [kind, "ls", "--filter", f"label={LABEL}" + (f"={identity}" if identity else "")]
        arguments += ["--all"] if kind == "container" else []
        name = {"container": "{{.Names}}", "image": "{{.ID}}"}.get(kind, "{{.Name}}")
        return self.run(*arguments, "--format", name).split()

    def answers(self) -> bool:
        try:
            return self.call("version", "--format", "{{.Server.Version}}", limit_s=ANSWER_LIMIT_S).returncode == 0
        except LabError:
            return False


class OwnDaemon:
    """The lab's own dockerd, one for all pairs of a checkout, with its own data, socket and pid file."""

    def __init__(self) -> None:
        self.data = shared() / "docker"
        # outside the checkout: a unix socket's path has at most 107 bytes, and containerd adds to it
        self.runtime = Path("/run") / f"spark-lab-{hashlib.sha256(bytes(shared())).hexdigest()[:8]}"
        self.docker = Docker(self.runtime / "docker.sock")

    def pid(self) -> int | None:
        """Its process id while it runs. A pid that now belongs to another program does not count."""
        try:
            pid = int((self.runtime / "docker.pid").read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        except (OSError, ValueError):
            return None
        return pid if str(self.data) in arguments else None

    def start(self) -> None:
        """Start the daemon, and return when it answers."""
        missing = [name for name in ("dockerd", "containerd", "iptables") if on_path(name) is None]
        if missing:
            raise LabError(
                f"no Docker daemon answers here, and {' and '.join(missing)} is not installed to start one\n"
                "  way out: make setup (it installs docker.io), or start your own Docker"
            )
        for folder in (self.data, self.runtime):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.runtime / "docker.pid").unlink(missing_ok=True)
        log = shared() / "docker.log"
        say("docker: no daemon answers here; starting one for the lab alone")
        with log.open("wb") as output:
            # without a bridge and firewall rules: the nodes need only the lab's networks
            daemon = subprocess.Popen(
                [
                    "dockerd", "--host", f"unix://{self.docker.socket}", "--data-root", str(self.data),
                    "--exec-root", str(self.runtime / "exec"), "--pidfile", str(self.runtime / "docker.pid"),
                    "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false",
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

        def log_end() -> str:
            return "\n".join(f"  | {line}" for line in log.read_text(errors="replace").splitlines()[-8:])

        def answers() -> bool:
            if daemon.poll() is not None:
                raise LabError(
                    f"the lab's Docker daemon ended with {daemon.returncode}; the end of {log}:\n{log_end()}\n"
                    "  way out: a host on which dockerd can run, or virtual machines: lab/lab up --nodes machines"
                )
            return self.docker.answers()

        try:
            wait_for("the lab's Docker daemon", answers, limit_s=START_LIMIT_S, every_s=0.1, evidence=log_end)
        except BaseException:
            daemon.terminate()
            raise

    def stop(self) -> None:
        """End the daemon by its pid and remove its runtime folder. Its containers must be gone."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_LIMIT_S
            while self.pid() is not None and time.monotonic() < deadline:
                time.sleep(0.05)
            if self.pid() is not None:
                raise LabError(f"the lab's Docker daemon (pid {pid}) did not end within {STOP_LIMIT_S} s of SIGTERM")
            say("docker: the lab's own daemon ended")
        # dockerd mounts its data folder on itself, and leaves the mount behind when it is killed
        while subprocess.run(["mountpoint", "--quiet", str(self.data)], timeout=20, check=False).returncode == 0:
            subprocess.run(["umount", str(self.data)], check=True, timeout=20)
        shutil.rmtree(self.runtime, ignore_errors=True)


def find() -> Docker | None:
    """The daemon that the lab uses now: its own while that runs, else the user's. None if neither answers."""
    own = OwnDaemon()
    if own.pid() is not None and own.docker.answers():
        return own.docker
    user = Docker(Path("/var/run/docker.sock"))
    return user if user.socket.exists() and user.answers() else None


@contextmanager
def held() -> Iterator[None]:
    """A lock on the lab's own daemon: who holds it may rely on the daemon, or end it."""
    shared().mkdir(parents=True, exist_ok=True)
    with (shared() / "docker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require_root() -> None:
    """Raise LabError without root."""
    if os.geteuid() != 0:
        raise LabError(
            "node-containers need root: the lab connects their network namespaces with a cable of its own\n"
            "  way out: work in a root shell (sudo -E -s), or use virtual machines, which need no root:"
            " lab/lab up --nodes machines"
        )


def ensure() -> Docker:
    """A daemon that answers, started if there is none.

    Call it under `held` before making the first thing of a pair: another process may end an idle daemon at any moment.
    """
    require_root()
    missing = [name for name in ("docker", "ip", "nsenter") if on_path(name) is None]
    if missing:
        raise LabError(f"the lab needs {' and '.join(missing)} on this host\n  way out: make setup")
    if (docker := find()) is None:
        OwnDaemon().start()
        docker = OwnDaemon().docker
    return docker


def demand() -> Docker:
    """The daemon that a pair runs on. Raises LabError if it does not answer."""
    if (docker := find()) is None:
        raise LabError("no Docker daemon answers, so there are no nodes\n  way out: lab/lab up")
    return docker


def find_for_removal() -> Docker | None:
    """The daemon on which a pair may have left something. Restarts the lab's own if it was killed."""
    own = OwnDaemon()
    with held():
        docker = find()
        containers = own.data / "containers"
        if docker is None and containers.exists() and any(containers.iterdir()):
            own.start()
            docker = own.docker
    return docker


def stop_own_when_unused() -> None:
    """End the lab's own daemon once no pair of this checkout has anything on it."""
    own = OwnDaemon()
    with held():
        # volumes go last when a pair is taken down
        unused = own.pid() is None or not any(map(own.docker.ours, ("container", "network", "volume")))
        if unused:
            own.stop()


def remove_node_image(docker: Docker) -> None:
    """Remove the node image from the user's daemon once no pair has a node there. The cache keeps its tar."""
    if docker != OwnDaemon().docker and not docker.ours("container"):
        remove(docker, "image", docker.ours("image", "image"))


def remove(docker: Docker, kind: str, names: Sequence[str]) -> None:
    """Remove these names in one command; do nothing if there are none."""
    if names:
        docker.run(kind, "rm", *(["--force"] if kind != "network" else []), *names)
