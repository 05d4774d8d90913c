"""Export the hub cache of the head to the workers, see that it is served, or take our export back.

Inputs (JSON argument): ExportInputs. Output: make prints a table.Export; serve, which starts our server if nothing
serves, and remove print nothing.
Exit codes: 0 done; 1 refused or failed, the reason on stderr.

Only hub/ is exported, read-only, with a worker's root as nobody. A server that already exports it is used as it is; one
that exports other things is not ours to change. remove stops and disables what we started and enabled.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, TypedDict

from host.as_root import NoRoot, RootError, Way, run, way
from host.console import say
from host.enter_mounts import PATH
from host.our_folder import folder_of, is_ours
from nfs.server import GRACE, UNIT, active_units, holders, host_serves, port_is_held, read_table, systemctl
from nfs.table import Export, Table, device_of, exports_to, our_text, paths_of, unescaped

EXPORTS = Path("/etc/exports")
OURS = "spark-stack-"
MOUNTS = Path("/proc/self/mountinfo")
LOCAL = "or set checkpoint.mode: local"
# each is one command, because getting root's rights may cost a container
WRITE = 'mkdir -p "${2%/*}" && printf %s "$1" >"$2.new" && mv "$2.new" "$2"'
# ends the grace period, in which every first read would wait a minute and a half for clients of an earlier run
START = f"systemctl enable {UNIT} && systemctl restart {UNIT} && {{ echo Y >{GRACE} || true; }}"
# exportfs fails when two stacks export one tree although it takes both, so only the table counts
RELOAD = f"if systemctl --quiet is-active {UNIT}; then exportfs -r || true; fi"
ERASE = f'rm "$1" && rmdir --ignore-fail-on-non-empty "${{1%/*}}" && {RELOAD}'


class ExportInputs(TypedDict):
    action: Literal["make", "serve", "remove"]
    stack: str
    hf_cache: str
    worker_fabric_ips: list[str]
    image: str
    python: str


class Started(TypedDict):
    """What we started on this node, for the way back."""

    enabled: bool
    """Whether the unit was enabled before."""
    units: list[str]


def file_of(stack: str) -> Path:
    return EXPORTS.with_name("exports.d") / f"{OURS}{stack}.exports"


def record_of(stack: str) -> Path:
    """The file that keeps Started."""
    return folder_of(stack) / "nfs.json"


def others(stack: str) -> list[str]:
    """Other stacks of ours that export from this node."""
    files = file_of(stack).parent.glob(f"{OURS}*.exports")
    return sorted({file.stem.removeprefix(OURS) for file in files} - {stack})


def contains_mount(tree: str) -> bool:
    """Whether something is mounted inside the tree; without crossmnt a worker would see an empty folder there."""
    points = [unescaped(line.split()[4]) for line in MOUNTS.read_text().splitlines()]
    return any(point.startswith(tree + "/") for point in points)


def check_open(tree: Path) -> None:
    """Refuse a hub that other users cannot read. Folders above do not matter; the worker's proof checks those below."""
    mode = tree.stat().st_mode & 0o777
    if mode & 0o005 != 0o005:
        raise SystemExit(
            f"{tree} has mode {mode:o}, and a worker's root is nobody on this node: run `chmod o+rx {tree}`, {LOCAL}"
        )


def foreign_paths(table: Table, stack: str, *, held: bool) -> list[str]:
    """Paths that are exported, or would be once the server starts, but not by a stack of ours."""
    ours = configured(*(file_of(each) for each in [stack, *others(stack)]))
    exported = set(table) if held else configured(EXPORTS, *file_of(stack).parent.glob("*.exports"))
    return sorted(exported - ours)


def configured(*files: Path) -> set[str]:
    """The paths in these files of exports."""
    return {path for file in files if file.is_file() for path in paths_of(file.read_text())}


def make(inputs: ExportInputs) -> Export:
    stack, workers, file = inputs["stack"], inputs["worker_fabric_ips"], file_of(inputs["stack"])
    if not is_ours(folder_of(stack), stack):
        raise SystemExit(f"{folder_of(stack)} is missing or not ours: run pulumi up again, it makes the folder first")
    tree = (Path(inputs["hf_cache"]).expanduser() / "hub").resolve()
    check_open(tree)
    text = our_text(stack, str(tree), workers, mounts_inside=contains_mount(str(tree)))

    held, serves = port_is_held(), host_serves()
    if held and not serves:
        holder = ", ".join(holders()) or "a process that is neither this host's nfs-server nor a container we know"
        say(f"nfs: port 2049 is served by {holder}: the worker's proof will show whether it exports {tree}")
        # the recipe's own exporter shares the whole cache folder as the root
        return {"devices": [":/hub", ":/", f":{tree}"], "holder": holder}
    table = read_table() if held else {}
    foreign = foreign_paths(table, stack, held=held)
    if str(tree) in foreign and exports_to(table, str(tree), workers):
        say(f"nfs: {tree} is exported already, not by us: used as it is")
        return {"devices": [device_of(table, str(tree))], "holder": None}
    if foreign and not file.exists() and not others(stack):
        line = text.splitlines()[-1]
        raise SystemExit(
            f"the NFS server of this node {'exports' if held else 'is off and would export'} {', '.join(foreign)} and "
            f"not {tree}, and it is not ours to change: add this line to {EXPORTS} and "
            f"{'run exportfs -ra' if held else 'start it'}, {LOCAL}: {line}"
        )
    if not (file.exists() and file.read_text() == text and exports_to(table, str(tree), workers)):
        if not shutil.which("exportfs", path=PATH):
            raise SystemExit(f"this node has no NFS server: run `sudo apt install nfs-kernel-server`, {LOCAL}")
        export(way(stack, inputs["image"], inputs["python"]), stack, text, held=held)
        table = read_table()
    if not exports_to(table, str(tree), workers):
        raise SystemExit(f"{tree} is not exported although {file} says so: `sudo exportfs -rv` tells why, {LOCAL}")
    return {"devices": [device_of(table, str(tree))], "holder": None}


def export(root: Way, stack: str, text: str, *, held: bool) -> None:
    """Write our file; have a running server read it, or start the server."""
    record = record_of(stack)
    run(root, ["sh", "-c", f"{WRITE} && {RELOAD}", "sh", text, str(file_of(stack))], timeout_s=60)
    if held:
        return
    before = active_units()
    if not record.exists():
        # written first, so that remove also undoes a start that broke off
        enabled = systemctl("is-enabled", UNIT) == ["enabled"]
        keep(record, {"enabled": enabled, "units": [f"{UNIT}.service"]})
    say(f"nfs: starting {UNIT}")
    run(root, ["sh", "-c", START], timeout_s=120)
    started: Started = json.loads(record.read_text())
    keep(record, {**started, "units": sorted({*started["units"], *(set(active_units()) - set(before))})})


def keep(record: Path, started: Started) -> None:
    record.write_text(json.dumps(started))


def serve(stack: str, image: str | None, python: str) -> None:
    """Start the server of our export if nothing serves: a container that reads over a hard mount cannot end before."""
    if port_is_held():
        return
    if not file_of(stack).exists():
        say(
            "nfs: nothing serves NFS on this node. If a worker's rank still reads from it, its removal waits until "
            "somebody starts the server that exported the hub cache, which is not ours"
        )
        return
    say(f"nfs: {UNIT} is not running, and the worker's rank cannot end without it: starting it")
    run(way(stack, image, python), ["sh", "-c", START], timeout_s=120)


def remove(stack: str, image: str | None, python: str) -> None:
    file, record = file_of(stack), record_of(stack)
    if not file.exists() and not record.exists():
        return
    root = way(stack, image, python)
    if file.exists():
        run(root, ["sh", "-c", ERASE, "sh", str(file)], timeout_s=60)
    if record.exists():
        hand_back(root, stack, json.loads(record.read_text()))
        record.unlink()


def hand_back(root: Way, stack: str, started: Started) -> None:
    """Stop what we started, unless another export needs it by now."""
    if staying := others(stack):
        say(f"nfs: {UNIT} stays for stack {staying[0]}")
        record = record_of(staying[0])
        if is_ours(record.parent, staying[0]) and not record.exists():
            keep(record, started)
    elif host_serves() and (left := sorted(read_table())):
        say(f"nfs: we started {UNIT}, but it stays because it also exports {', '.join(left)}")
    else:
        disable = "" if started["enabled"] else f"systemctl disable {UNIT} && "
        run(root, ["sh", "-c", f'{disable}systemctl stop "$@"', "sh", *started["units"]], timeout_s=120)


def main() -> None:
    inputs: ExportInputs = json.loads(sys.argv[1])
    try:
        if inputs["action"] == "make":
            print(json.dumps(make(inputs)))
        else:
            act = serve if inputs["action"] == "serve" else remove
            act(inputs["stack"], inputs["image"], inputs["python"])
    except (NoRoot, RootError) as error:
        raise SystemExit(f"nfs: the export cannot be changed: {error}; {LOCAL}") from None
    except OSError as error:
        raise SystemExit(
            f"{error.filename} cannot be used: {error.strerror}: does this node run systemd, and may this user read it?"
        ) from None
    except subprocess.TimeoutExpired:
        raise SystemExit("systemctl did not answer within 60 s: is the node overloaded?") from None


if __name__ == "__main__":
    main()
