"""Everything the program wants to know about a node before it declares anything, as one JSON document.

Reads only; needs no root and no tool but Python. Every probe is bounded and stands alone: one that fails leaves null
and an entry in `problems`. Standard library only, Python 3.10.

Inputs: one JSON object, all keys optional: stack, hf_cache (default ~/.cache/huggingface), model (owner/name) with
revision, shards (how many its index names), encoding_file and endpoint (asked for the revision where it is not whole;
left out where nothing is downloaded), image (repository@sha256:digest), ports (a list of numbers), nfs (address of a
server to knock at). Other keys are ignored.
stdout: the document between the lines ---spark-facts--- and ---end---. stderr: words.
Exit codes: 0 the document is complete or says what is not; 64 bad inputs.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from download import job_status
from facts import checkpoint, docker, processes
from facts.processes import run
from gid import sysfs
from gid.sysfs import read_text
from host import our_folder
from hub.files import snapshot_of

SCHEMA = 1
LIMIT_S = 15.0
"""Wall-clock limit of the slowest probe; all run at once."""
MEMORY = ("MemTotal", "MemFree", "MemAvailable", "CmaTotal", "CmaFree", "SwapTotal")

SYSTEM = ("hostname", "boot_id", "kernel", "machine", "os", "kho_off")
USER = ("user", "uid", "home", "groups")

Json = dict[str, Any]


def system() -> Json:
    kernel = os.uname()
    release = read_text("/etc/os-release") or ""
    names = [line[12:].strip().strip('"') for line in release.splitlines() if line.startswith("PRETTY_NAME=")]
    return {
        "hostname": kernel.nodename,
        "boot_id": read_text("/proc/sys/kernel/random/boot_id"),
        "kernel": kernel.release,
        "machine": kernel.machine,
        "os": names[0] if names else None,
        "kho_off": "kho=off" in (read_text("/proc/cmdline") or "").split(),
    }


def memory() -> Json:
    """The wanted lines of /proc/meminfo in kB; null where this kernel has none."""
    text = read_text("/proc/meminfo") or ""
    found = {name: fields.split()[0] for name, _, fields in (line.partition(":") for line in text.splitlines())}
    return {name: int(found[name]) if name in found else None for name in MEMORY}


def group_names() -> list[str]:
    """The groups of this session, which can be older than /etc/group."""
    import grp

    names: list[str] = []
    for gid in {os.getegid(), *os.getgroups()}:
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            names.append(str(gid))
    return sorted(names)


def user() -> Json:
    import pwd

    entry = pwd.getpwuid(os.getuid())
    return {"user": entry.pw_name, "uid": entry.pw_uid, "home": entry.pw_dir, "groups": group_names()}


def may_sudo() -> bool:
    """Whether `sudo -n` works: without a password, and at all. Raises TimeoutError, since late is not no."""
    try:
        run("sudo", "-n", "true")
    except TimeoutError:
        raise
    except OSError:
        return False
    return True


# --- GPU, disk, checkpoint ---


def gpu() -> Json:
    """The GPU, its driver, and the processes that hold its memory (used_mib null: unified memory hides it)."""
    query, fields = "--query-gpu=name,driver_version", "--query-compute-apps=pid,process_name,used_memory"
    name, _, driver = run("nvidia-smi", query, "--format=csv,noheader").partition(",")
    apps: list[Json] = []
    for line in run("nvidia-smi", fields, "--format=csv,noheader,nounits").splitlines():
        pid, _, rest = line.partition(",")
        program, _, used = rest.rpartition(",")
        if pid.strip().isdecimal():
            mib = int(used) if used.strip().isdecimal() else None
            apps.append({"pid": int(pid), "name": program.strip(), "used_mib": mib, "container": None})
    return {"name": name.strip(), "driver": driver.strip().partition("\n")[0], "apps": apps}


def expand(path: str) -> str:
    """A path as this node means it: ~ and variables are the node's, not the control host's."""
    return os.path.realpath(os.path.expanduser(os.path.expandvars(path)))


def disk(path: str) -> Json:
    """The file system that holds a folder, or will: `anchor` is the nearest folder above that exists."""
    anchor = path
    while not os.path.isdir(anchor) and anchor != "/":
        anchor = os.path.dirname(anchor)
    status, system = os.stat(anchor), os.statvfs(anchor)
    return {
        "path": path,
        "exists": anchor == path,
        "anchor": anchor,
        "free_bytes": system.f_bavail * system.f_frsize,
        "device": status.st_dev,
        "owner_uid": status.st_uid,
    }


def cache_disk(hf_cache: str, model: str | None) -> Json:
    """The Hugging Face cache's disk; `unwritable` is the first folder a download would be refused in, or null."""
    facts = disk(hf_cache)
    folders = [str(facts["anchor"]), f"{hf_cache}/hub"]
    if model:
        folder = snapshot_of(Path(hf_cache) / "hub", model, "any").parent.parent
        folders += [str(folder), f"{folder}/blobs", f"{folder}/snapshots"]
    closed = [path for path in folders if os.path.exists(path) and not os.access(path, os.W_OK | os.X_OK)]
    return {**facts, "writable": not closed, "unwritable": closed[0] if closed else None}


def gather(probes: dict[str, Callable[[], object]]) -> tuple[Json, list[Json]]:
    """Run all probes at once: their results by name, None where one failed or was late, and the problems."""
    results: Json = dict.fromkeys(probes)
    errors: dict[str, str | None] = dict.fromkeys(probes, f"no answer within {LIMIT_S:.0f} s")

    def do(name: str) -> None:
        try:
            results[name] = probes[name]()
            errors[name] = None
        except docker.Unusable:
            errors[name] = None  # docker.status tells it once for all
        except OSError as error:
            errors[name] = str(error)
        except Exception as error:  # a probe that broke must not cost the others
            errors[name] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=do, args=(name,), daemon=True) for name in probes]
    end = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    # copies: a probe that is late must not change the document while it is written
    done, told = dict(results), dict(errors)
    return done, [{"probe": name, "error": error} for name, error in told.items() if error is not None]


def name_owners(listeners: list[Json], apps: list[Json], listed: list[Json], *, ask_root: bool) -> None:
    """Fill in who is behind a port or holds the GPU: the container, and with sudo the process of another user."""
    names, published = docker.names_of(listed), docker.published_ports(listed)
    for entry in listeners:
        inode = str(entry.pop("inode"))
        if entry["pid"] is None and ask_root and (pid := processes.owner_as_root(inode)):
            entry["pid"], entry["process"] = pid, read_text(f"/proc/{pid}/comm")
    for entry in (*listeners, *apps):
        pid = entry["pid"]
        identity = processes.container_id(pid) if isinstance(pid, int) else None
        entry["container"] = names.get(identity or "") or published.get(entry.get("port", 0))


def described(listed: list[Json]) -> tuple[list[Json], list[Json]]:
    """The containers that matter, and the list they came from."""
    return docker.describe(listed), listed


def assemble(found: Json, problems: list[Json]) -> Json:
    """The document from the probes' results."""
    containers, listed = found["containers"] or (None, [])
    status, table = found["docker"] or {}, found["table"] or {}
    ours_run = any(container["running"] and "spark.stack" in container["labels"] for container in containers or [])
    apps = found["gpu"]["apps"] if found["gpu"] else []
    # while our ranks run, what another user holds is theirs: no need to ask root at each preview
    name_owners(found["listeners"] or [], apps, listed, ask_root=bool(found["sudo_n"]) and not ours_run)
    docker_root = None
    if status.get("root_dir"):
        try:
            docker_root = disk(status["root_dir"])
        except OSError as error:
            problems.append({"probe": "docker_root", "error": str(error)})
    return {
        "schema": SCHEMA,
        "read_at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        **(found["system"] or dict.fromkeys(SYSTEM)),
        **(found["user"] or dict.fromkeys(USER)),
        "sudo_n": found["sudo_n"],
        "memory": found["memory"],
        "interfaces": table.get("interfaces"),
        "hcas": table.get("hcas"),
        "docker": found["docker"],
        "containers": containers,
        "image": found["image"],
        "listeners": found["listeners"],
        "gpu": found["gpu"],
        "disk": {"hf_cache": found["hf_cache"], "docker_root": docker_root},
        "checkpoint": found["checkpoint"],
        "job": found["job"],
        "nfs": found["nfs"],
        "folder": found["folder"],
        "earlyoom": found["earlyoom"],
        "problems": problems,
    }


def probes_of(inputs: Json) -> dict[str, Callable[[], object]]:
    """What to ask this node. Raises AttributeError, TypeError or ValueError for inputs that are not as the header says.

    Paths are followed by the probes themselves: a dead mount holds up whoever looks at it.
    """
    stack, image = inputs.get("stack"), inputs.get("image")
    model, revision, shards = inputs.get("model"), inputs.get("revision"), int(inputs.get("shards") or 0)
    others = [inputs["encoding_file"]] if inputs.get("encoding_file") else []
    hf_cache = inputs.get("hf_cache") or "~/.cache/huggingface"
    endpoint, nfs = inputs.get("endpoint"), inputs.get("nfs")
    ports = {int(port) for port in inputs.get("ports") or []}
    if not all(isinstance(text, str) for text in (hf_cache, model or "", revision or "", image or "", stack or "")):
        raise TypeError("stack, hf_cache, model, revision and image are texts")
    return {
        # the slow ones first: sudo opens a PAM session
        "sudo_n": may_sudo,
        "gpu": gpu,
        "docker": lambda: docker.read_status(group_names()),
        "containers": lambda: described(docker.list_containers()),
        "image": lambda: docker.read_image(image) if image else None,
        "table": sysfs.read_table,
        "system": system,
        "user": user,
        "memory": memory,
        "hf_cache": lambda: cache_disk(expand(hf_cache), model),
        "checkpoint": lambda: (
            checkpoint.checkpoint(expand(hf_cache), model, revision, shards, others, endpoint)
            if model and revision
            else None
        ),
        "job": lambda: job_status.read(our_folder.folder_of(stack) / "job" / "status.json") if stack else None,
        "nfs": lambda: {"refused": checkpoint.knock(nfs)} if nfs else None,
        "folder": lambda: bool(stack and our_folder.is_ours(our_folder.folder_of(stack), stack)),
        "listeners": lambda: processes.listeners(ports),
        "earlyoom": lambda: processes.is_running("earlyoom"),
    }


def main(arguments: list[str]) -> int:
    """The command: see the module's header."""
    try:
        probes = probes_of(json.loads(arguments[0]) if arguments else {})
    except (AttributeError, TypeError, ValueError) as error:
        print(f"inputs: one JSON object as the header of facts/gather.py says ({error})", file=sys.stderr)
        return 64
    facts = assemble(*gather(probes))
    for problem in facts["problems"]:
        print(f"{problem['probe']}: {problem['error']}", file=sys.stderr)
    # a key a line: no line grows past what a terminal, or a line-wise reader, takes
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items())
    print(f"---spark-facts---\n{{\n{lines}\n}}\n---end---", flush=True)
    return 0


if __name__ == "__main__":
    # not sys.exit: a probe that hangs in a dead mount must not hold up the exit
    os._exit(main(sys.argv[1:]))
