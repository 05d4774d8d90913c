"""Process 1 of a rank's container: check what the engine needs on this node now, then become the engine.

Inputs: /opt/spark/start.json (StartInputs); the command in argv; its environment, without what only this node knows; an
API key in /run/spark/api_key. Every line on stdout starts with `spark: `.
Exit codes: the engine's own; that of a patch that failed; 1 if it cannot be started otherwise, with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import NoReturn

from gid import sysfs
from gid.lookup import resolve
from gid.members import Refusal
from hub.files import PinnedRevision, gaps, snapshot_of
from rank import patch_steps
from rank.effort_edit import FILE, Moved, edit

START = Path(os.environ.get("SPARK_START", "/opt/spark/start.json"))
KEY = Path(os.environ.get("SPARK_API_KEY_FILE", "/run/spark/api_key"))
CUDA = "/usr/local/cuda"
IFNAMES = ("NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class StartInputs(PinnedRevision):
    rank: int
    fabric_ip: str
    hca: str | None
    links: list[str]
    """This node's addresses on its links, if fabric_ip is on none of them."""
    ifnames: dict[str, str]
    """Netdevs by variable; one that is missing is the netdev that holds fabric_ip."""
    gid_index: str | int
    encoding_target: str
    """The prompt encoder's place in the image."""
    patches: list[patch_steps.PatchStep]
    """In the order in which they run."""
    patch_limit_s: float
    """Of each."""


def say(text: str) -> None:
    for line in text.splitlines():
        print(f"spark: {line}", flush=True)


def stop(text: str, code: int = 1) -> NoReturn:
    say(f"error: {text}")
    sys.exit(code)


def set_fabric(start: StartInputs, env: MutableMapping[str, str]) -> None:
    """Set the fabric's variables for this node as it is now; one without a value is left out, never empty."""
    # a pinned index must still be usable here: a new one is a visible diff of the next up
    gid_index = int(env["NCCL_IB_GID_INDEX"]) if start["gid_index"] == "pin" else start["gid_index"]
    try:
        resolution = resolve(sysfs.read_table(), start["fabric_ip"], start["hca"], gid_index, start["links"])
    except Refusal as refusal:
        stop(str(refusal))
    except OSError as error:
        stop(f"the interfaces of this node cannot be read: {error}")
    env["NCCL_IB_HCA"] = resolution["hca"]
    for name in IFNAMES:
        env[name] = start["ifnames"].get(name) or resolution["ifname"]
    if resolution["gid_index"] is None:
        env.pop("NCCL_IB_GID_INDEX", None)
    else:
        env["NCCL_IB_GID_INDEX"] = str(resolution["gid_index"])
    for name in [name for name, value in env.items() if name.startswith("NCCL_") and not value]:
        say(f"{name} is empty, which would hide /etc/nccl.conf: leaving it out")
        del env[name]
    for note in resolution["notes"]:
        say(f"note: {note}")
    members = ", ".join(f"{member['hca']} on {member['ifname']}" for member in resolution["members"])
    say(f"fabric {members}, GID index {env.get('NCCL_IB_GID_INDEX', 'left to NCCL')}")


def check_checkpoint(start: StartInputs, env: MutableMapping[str, str]) -> Path:
    snapshot = snapshot_of(Path(env["HF_HOME"]) / "hub", start["repo"], start["revision"])
    missing = gaps(snapshot, start["shards"])
    if missing:
        stop("the checkpoint is incomplete: " + "; ".join(missing) + ": pulumi up fetches what is missing")
    say(f"checkpoint {start['repo']} at {start['revision'][:8]}: all {start['shards']} shards are complete")
    return snapshot


def set_encoder(start: StartInputs, snapshot: Path) -> None:
    """Put the snapshot's prompt encoder over the image's, which may be older and render other prompts."""
    source, target = snapshot / start["encoding_file"], Path(start["encoding_target"])
    if not source.is_file():
        stop(f"{start['encoding_file']} is missing in the snapshot: pulumi up fetches it")
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        stop(f"{target} cannot be written: {error.strerror}: image.encoding_target suits another image")
    say(f"prompt encoder of the snapshot: copied to {target}")


def set_efforts(start: StartInputs) -> None:
    """Map reasoning efforts to what the snapshot's encoder means; the image knows those of an older encoder only."""
    file = Path(start["encoding_target"]).with_name(FILE)
    try:
        edited = edit(file)
    except (Moved, OSError, UnicodeError) as error:
        stop(
            f"the reasoning effort in {file} cannot be corrected: {error}: low would silently think like high: "
            "use the profile's image, for which this edit is made",
        )
    say(f"reasoning effort in {file}: {'corrected' if edited else 'was corrected before'}")


def set_patches(start: StartInputs, env: MutableMapping[str, str]) -> None:
    """The recipe's edits of the image's vLLM, before anything imports it."""
    # the encoder lies in vllm/tokenizers
    root = Path(start["encoding_target"]).parent.parent
    try:
        patch_steps.apply(start["patches"], root, start["patch_limit_s"], dict(env), say)
    except patch_steps.PatchFailed as failed:
        stop(str(failed), failed.code)


def set_paths(env: MutableMapping[str, str]) -> None:
    before = env.get("PATH", "/usr/bin:/bin")
    env["PATH"] = f"{CUDA}/bin:/usr/local/bin:{before}"
    libraries = env.get("LD_LIBRARY_PATH")
    env["LD_LIBRARY_PATH"] = f"{CUDA}/lib64" + (f":{libraries}" if libraries else "")
    for name, value in env.items():
        if name.endswith(("_CACHE_ROOT", "_CACHE_DIR", "_WORKSPACE_BASE")):
            Path(value).mkdir(parents=True, exist_ok=True)
    Path(env["TORCH_FR_DUMP_TEMP_FILE"]).parent.mkdir(parents=True, exist_ok=True)


def set_key(env: MutableMapping[str, str]) -> None:
    """Put the key into the engine's environment only: anyone could read it in argv or in the container's."""
    if KEY.is_file():
        env["VLLM_API_KEY"] = KEY.read_text()
        say("the API needs a key")


def main() -> None:
    start: StartInputs = json.loads(START.read_text())
    env = dict(os.environ)
    say(f"rank {start['rank']} starts")
    set_fabric(start, env)
    snapshot = check_checkpoint(start, env)
    set_encoder(start, snapshot)
    set_efforts(start)
    set_paths(env)
    if start["patches"]:
        set_patches(start, env)
    if start["rank"] == 0:
        set_key(env)
    command = sys.argv[1:]
    program = shutil.which(command[0], path=env["PATH"])
    if program is None:
        stop(f"{command[0]} is not in this image: compare its digest with the profile's")
    say(f"starting the engine: {command[0]} {' '.join(command[1:3])}")
    os.execve(program, command, env)


if __name__ == "__main__":
    main()
