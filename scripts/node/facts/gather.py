"""Everything the program needs to know about a node before it declares anything, as one JSON document.

Reads only; needs no root and no tool but Python. Every probe has a limit and stands alone: a failed one leaves null and
an entry in `problems`. Standard library only, Python 3.10.

Inputs (JSON argument): document.FactsInputs. stdout: document.Facts. stderr: the problems. Exit code: 0.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from download import job_status
from facts import checkpoint, docker, links, processes
from facts.document import (
    ContainerFacts,
    DiskFacts,
    Disks,
    Facts,
    FactsInputs,
    GpuApp,
    GpuFacts,
    JobFacts,
    ListenerFacts,
    MemoryFacts,
    NfsFacts,
    Problem,
    printed,
)
from facts.patches import read_patches
from facts.processes import run
from gid import sysfs
from gid.sysfs import read_text
from host import our_folder
from host.console import say
from host.enter_mounts import PATH
from hub.files import snapshot_of

LIMIT_S = 15.0
"""Wall-clock limit of all probes, which run at once."""

Results = dict[str, Any]
"""Each probe's result by its name; None if it failed."""


def system() -> dict[str, Any]:
    """Fields of Facts."""
    kernel = os.uname()
    release = read_text("/etc/os-release") or ""
    names = [line[12:].strip().strip('"') for line in release.splitlines() if line.startswith("PRETTY_NAME=")]
    return {
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "kernel": kernel.release,
        "machine": kernel.machine,
        "os": names[0] if names else None,
        "kho_off": "kho=off" in (read_text("/proc/cmdline") or "").split(),
    }


def memory() -> MemoryFacts:
    text = read_text("/proc/meminfo") or ""
    lines = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in text.splitlines())}
    return MemoryFacts(*(lines.get(name) for name in ("MemTotal", "MemAvailable", "CmaTotal", "CmaFree")))


def group_names() -> list[str]:
    """The groups of this session, which may have begun before /etc/group changed."""
    import grp

    names: list[str] = []
    for gid in {os.getegid(), *os.getgroups()}:
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(str(gid))
    return sorted(names)


def user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def may_sudo() -> bool:
    """Whether `sudo` works without a password. Raises TimeoutError, which is neither yes nor no."""
    try:
        run("sudo", "-n", "true")
    except TimeoutError:
        raise
    except OSError:
        return False
    return True


# --- GPU, disk, checkpoint ---


def gpu() -> GpuFacts:
    query, fields = "--query-gpu=driver_version", "--query-compute-apps=pid,process_name,used_memory"
    driver = run("nvidia-smi", query, "--format=csv,noheader")
    apps: list[GpuApp] = []
    for line in run("nvidia-smi", fields, "--format=csv,noheader,nounits").splitlines():
        pid, _, rest = line.partition(",")
        program, _, used = rest.rpartition(",")
        if pid.strip().isdecimal():
            apps.append(GpuApp(int(pid), program.strip(), int(used) if used.strip().isdecimal() else None))
    return GpuFacts(driver.strip().partition("\n")[0], apps)


def expand(path: str) -> str:
    """A path with ~ and variables as this node has them, not the control host."""
    return os.path.realpath(os.path.expanduser(os.path.expandvars(path)))


def existing(path: str) -> str:
    """The folder itself, or the nearest existing one above it."""
    while not os.path.isdir(path) and path != "/":
        path = os.path.dirname(path)
    return path


def disk(path: str) -> DiskFacts:
    """The file system that holds a folder, or will hold it."""
    system = os.statvfs(existing(path))
    return DiskFacts(path, system.f_bavail * system.f_frsize)


def cache_disk(hf_cache: str, repo: str | None) -> DiskFacts:
    """The Hugging Face cache's disk, and whether a download could write there."""
    folders = [existing(hf_cache), f"{hf_cache}/hub"]
    if repo:
        folder = snapshot_of(Path(hf_cache) / "hub", repo, "any").parent.parent
        folders += [str(folder), f"{folder}/blobs", f"{folder}/snapshots"]
    closed = [path for path in folders if os.path.exists(path) and not os.access(path, os.W_OK | os.X_OK)]
    return replace(disk(hf_cache), unwritable=closed[0] if closed else None)


def gather(probes: dict[str, Callable[[], object]]) -> tuple[Results, list[Problem]]:
    """Run all probes at once; returns their results by name, None for one that failed or was late, and the problems."""
    results: Results = dict.fromkeys(probes)
    errors: dict[str, str | None] = dict.fromkeys(probes, f"no answer within {LIMIT_S:.0f} s")

    def do(name: str) -> None:
        try:
            results[name] = probes[name]()
            errors[name] = None
        except docker.Unusable:
            errors[name] = None  # docker.status says so once for all probes
        except OSError as error:
            errors[name] = str(error)
        except Exception as error:  # a broken probe must not cost the others
            errors[name] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=do, args=(name,), daemon=True) for name in probes]
    end = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    # copies: a late probe must not change the document while it is written
    done, failed = dict(results), dict(errors)
    return done, [Problem(name, error) for name, error in failed.items() if error is not None]


def named(
    listeners: list[tuple[ListenerFacts, str]], apps: list[GpuApp], listed: list[dict[str, Any]], *, ask_root: bool
) -> tuple[list[ListenerFacts], list[GpuApp]]:
    """The same with the container behind a port or a GPU process, and with sudo another user's process too."""
    names, published = docker.names_of(listed), docker.published_ports(listed)

    def container(pid: int | None) -> str | None:
        identity = processes.container_id(pid) if pid is not None else None
        return names.get(identity or "")

    complete = []
    for listener, inode in listeners:
        if listener.pid is None and ask_root:
            pid, process = processes.process_of(processes.owner_as_root(inode))
            listener = replace(listener, pid=pid, process=process)
        complete.append(replace(listener, container=container(listener.pid) or published.get(listener.port)))
    return complete, [replace(app, container=container(app.pid)) for app in apps]


def described(listed: list[dict[str, Any]]) -> tuple[list[ContainerFacts], list[dict[str, Any]]]:
    """The containers that matter, and dockerd's list of all."""
    return docker.describe(listed), listed


def assemble(results: Results, problems: list[Problem]) -> Facts:
    """The document from the probes' results."""
    containers, listed = results["containers"] or (None, [])
    gpu: GpuFacts | None = results["gpu"]
    ours_run = any(container.running and "spark.stack" in container.labels for container in containers or [])
    # while our ranks run, what another user holds belongs to them: no need to ask root at each preview
    ask_root = bool(results["sudo_n"]) and not ours_run
    listeners, apps = named(results["listeners"] or [], gpu.apps if gpu else [], listed, ask_root=ask_root)
    docker_root = None
    if results["docker"] and results["docker"].root_dir:
        try:
            docker_root = disk(results["docker"].root_dir)
        except OSError as error:
            problems.append(Problem("docker_root", str(error)))
    table = results["table"] or {}
    same = ("links", "user", "memory", "docker", "image", "checkpoint", "job", "nfs", "patches", "folder", "earlyoom")
    return Facts(
        **(results["system"] or {}),
        **{name: results[name] for name in same},
        read_at=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        interfaces=table.get("interfaces"),
        hcas=table.get("hcas"),
        containers=containers,
        listeners=None if results["listeners"] is None else listeners,
        gpu=gpu and replace(gpu, apps=apps),
        disk=Disks(results["hf_cache"], docker_root),
        problems=problems,
    )


def nfs(head_fabric_ip: str | None, *, exports: bool) -> NfsFacts | None:
    if exports:
        return NfsFacts(tools=shutil.which("exportfs", path=PATH) is not None)
    return NfsFacts(checkpoint.nfs_refusal(head_fabric_ip)) if head_fabric_ip else None


def job_of(stack: str) -> JobFacts | None:
    status = job_status.read(our_folder.folder_of(stack) / "job" / "status.json")
    return JobFacts(status["id"], status["state"]) if status else None


def probes_of(inputs: FactsInputs) -> dict[str, Callable[[], object]]:
    """What to read on this node. Only the probes touch paths: a dead mount blocks the thread that looks at it."""
    stack, image = inputs.get("stack"), inputs.get("image")
    repo, revision, shards = inputs.get("repo"), inputs.get("revision"), inputs.get("shards") or 0
    others = [inputs["encoding_file"]] if inputs.get("encoding_file") else []
    hf_cache = inputs.get("hf_cache") or "~/.cache/huggingface"
    patches = inputs.get("patches")
    endpoint, head_fabric_ip = inputs.get("endpoint"), inputs.get("head_fabric_ip")
    ports = set(inputs.get("ports") or [])
    return {
        # the slow ones first: sudo opens a PAM session
        "sudo_n": may_sudo,
        "gpu": gpu,
        "docker": lambda: docker.read_status(group_names()),
        "containers": lambda: described(docker.list_containers()),
        "image": lambda: docker.read_image(image) if image else None,
        "table": sysfs.read_table,
        "links": links.read,
        "system": system,
        "user": user,
        "memory": memory,
        "hf_cache": lambda: cache_disk(expand(hf_cache), repo),
        "checkpoint": lambda: (
            checkpoint.checkpoint(expand(hf_cache), repo, revision, shards, others, endpoint)
            if repo and revision
            else None
        ),
        "job": lambda: job_of(stack) if stack else None,
        "patches": lambda: read_patches(stack, patches) if stack and patches else None,
        "nfs": lambda: nfs(head_fabric_ip, exports=inputs.get("exports", False)),
        "folder": lambda: bool(stack and our_folder.is_ours(our_folder.folder_of(stack), stack)),
        "listeners": lambda: processes.listeners(ports),
        "earlyoom": lambda: processes.is_running("earlyoom"),
    }


def main() -> None:
    facts = assemble(*gather(probes_of(json.loads(sys.argv[1]))))
    for problem in facts.problems:
        say(f"{problem.probe}: {problem.error}")
    print(printed(facts), flush=True)
    # not sys.exit: a probe that hangs in a dead mount must not block the exit
    os._exit(0)


if __name__ == "__main__":
    main()
