"""The control host's two services for a pair: a registry and a model hub, where the pair's nodes reach them.

`start` is idempotent: it builds and pushes the runtime image if needed, starts what is not running, restarts what runs
from older sources, and returns once both answer. A process is recognized by its pid file and its own command line, so
a reused pid is never ended.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lab.hub import server as hub_server
from lab.place import CHECKOUT, Place, shared
from lab.report import LabError, elapsed_s, say, wait_for
from lab.runtime import image as runtime_image
from lab.runtime import oci

REGISTRY_PORT = 5000
HUB_PORT = 5055
ANSWER_LIMIT_S = 60.0
STOP_LIMIT_S = 10.0


@dataclass(frozen=True)
class Service:
    """A background process of the lab. `signature` is a part of its command line that no other process has."""

    name: str
    command: list[str]
    signature: str
    port: int
    place: Place

    @property
    def pid_file(self) -> Path:
        return self.place.root / f"{self.name}.pid"

    @property
    def log(self) -> Path:
        return self.place.root / f"{self.name}.log"

    def pid(self) -> int | None:
        """The process id while it runs."""
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return pid if self.signature in command_line(pid) else None

    def launch(self) -> None:
        address = self.place.services_address
        if holder := listener(address, self.port):
            raise LabError(
                f"the {self.name} needs port {self.port} of {address}, and {holder} listens on it\n"
                "  way out: stop it; if it is another checkout's lab, with that one's lab/services stop"
            )
        if shutil.which(self.command[0]) is None:
            raise LabError(f"{self.command[0]} is not installed\n  way out: make setup")
        # the shell ends at once, so the service is nobody's child: it leaves no zombie and outlives this process
        begun = subprocess.run(
            ["sh", "-c", '"$@" >>"$0" 2>&1 </dev/null & echo $!', str(self.log), *self.command],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=True,
        )
        self.pid_file.write_bytes(begun.stdout)

    def await_answer(self, probe: Callable[[], bool]) -> None:
        def alive_and_answering() -> bool:
            if self.pid() is None:
                raise LabError(f"the {self.name} ended at once; the end of {self.log}:\n{tail(self.log)}")
            return probe()

        wait_for(
            f"the {self.name} answers on port {self.port}",
            alive_and_answering,
            limit_s=ANSWER_LIMIT_S,
            every_s=0.1,
            evidence=lambda: tail(self.log),
        )

    def stop(self) -> bool:
        """End the process by its pid, with SIGKILL after STOP_LIMIT_S. Returns whether it ran."""
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + STOP_LIMIT_S
            while self.pid() is not None:
                if time.monotonic() > deadline:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.05)
        self.pid_file.unlink(missing_ok=True)
        return pid is not None


def tail(file: Path, lines: int = 12) -> str:
    try:
        return "\n".join(f"  {line}" for line in file.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""


def command_line(pid: int) -> str:
    """A process's arguments, joined by spaces; empty for no process, a zombie and a kernel thread."""
    process = Path(f"/proc/{pid}")
    for _ in range(20):
        try:
            arguments = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            is_zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return ""
        if arguments or is_zombie:
            return arguments
        # for a moment during an exec there are none
        time.sleep(0.02)
    return ""


def listener(ip: str, port: int) -> str | None:
    """`pid N (command line)` of the process that listens on the port of `ip` or of every address; None if free."""
    # the kernel prints the address's bytes as one number in this machine's byte order
    ours = f"{int.from_bytes(socket.inet_aton(ip), sys.byteorder):08X}"
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            cells = row.split()
            address, _, local_port = cells[1].rpartition(":")
            ours_or_any = address == ours or not address.strip("0")
            if cells[3] == "0A" and int(local_port, 16) == port and ours_or_any:
                inodes.add(f"socket:[{cells[9]}]")
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(handle) in inodes for handle in (process / "fd").iterdir()):
                return f"pid {process.name} ({command_line(int(process.name)).strip()})"
        except OSError:
            continue
    return "a process of another user"


def registry(place: Place) -> Service:
    config = place.root / "registry.json"
    return Service("registry", ["docker-registry", "serve", str(config)], str(config), REGISTRY_PORT, place)


def hub(place: Place) -> Service:
    options = ["--host", place.services_address, "--port", str(HUB_PORT), "--lab", str(place.root)]
    command = [sys.executable, "-m", "lab.hub.server", *options]
    return Service("hub", command, f"lab.hub.server {' '.join(options)}", HUB_PORT, place)


def registry_address(place: Place) -> str:
    return f"{place.services_address}:{REGISTRY_PORT}"


def write_registry_config(place: Place) -> None:
    # JSON is YAML
    config = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        # shared, since pairs side by side serve the same images
        "storage": {"filesystem": {"rootdirectory": str(shared() / "registry")}},
        "http": {"addr": registry_address(place)},
    }
    (place.root / "registry.json").write_text(json.dumps(config, indent=1) + "\n")


def hub_sources(place: Place) -> str | None:
    """The digest of the sources that the running hub was started from; None if it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{place.services_address}:{HUB_PORT}/lab/health", timeout=5) as reply:
            return str(json.load(reply)["sources"])
    except (OSError, ValueError, KeyError):
        return None


def start(place: Place) -> None:
    for folder in (place.root, shared()):
        folder.mkdir(parents=True, exist_ok=True)
    image_store = oci.Registry(registry_address(place))
    image_registry, model_hub = registry(place), hub(place)
    if model_hub.pid() is not None and hub_sources(place) != hub_server.sources():
        say("hub: restarting it, since its sources changed")
        model_hub.stop()
    if model_hub.pid() is None:
        model_hub.launch()
    if image_registry.pid() is None:
        write_registry_config(place)
        image_registry.launch()
    with (shared() / "runtime-image.lock").open("w") as lock:
        # with pairs side by side, one builds and the others find the image in the cache
        fcntl.flock(lock, fcntl.LOCK_EX)
        image, base = runtime_image.build()
    image_registry.await_answer(image_store.answers)
    for pushed, tag in ((base, runtime_image.BASE_TAG), (image, runtime_image.TAG)):
        if not image_store.has(runtime_image.NAME, pushed.digest):
            say(f"registry: pushing {runtime_image.NAME}:{tag}")
            image_store.push(pushed, runtime_image.NAME, tag)
    model_hub.await_answer(lambda: hub_sources(place) == hub_server.sources())
    (place.root / "runtime-image.digest").write_text(f"{image.digest}\n")
    say(f"registry and hub answer on {place.services_address}; runtime image {image.digest[:19]}")


def status(place: Place) -> int:
    """Print one line for each service. Returns 0 if both answer, the hub from the present sources, else 3."""
    healthy = True
    for service, answers in (
        (registry(place), oci.Registry(registry_address(place)).answers),
        (hub(place), lambda: hub_sources(place) == hub_server.sources()),
    ):
        pid = service.pid()
        state = "answers" if pid and answers() else "does not answer, or runs older sources" if pid else "not running"
        healthy = healthy and state == "answers"
        print(f"{service.name:<9} {place.services_address}:{service.port}  {state}" + (f", pid {pid}" if pid else ""))
    return 0 if healthy else 3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="lab/services", description="Registry and model hub of the lab.")
    parser.add_argument("action", choices=("start", "stop", "status"))
    action = parser.parse_args(arguments).action
    place = Place.of_environment()
    try:
        if action == "status":
            return status(place)
        if action == "start":
            start(place)
        else:
            for service in (hub(place), registry(place)):
                say(f"{service.name}: {'stopped' if service.stop() else 'was not running'}")
    except LabError as error:
        print(f"lab/services {action} failed after {elapsed_s():.1f} s: {error}", file=sys.stderr)
        return 1
    return 0
