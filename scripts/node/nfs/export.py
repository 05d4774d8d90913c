"""Export the hub cache of the head to the workers, see that it is served, or take our export back.

Inputs (JSON argument): ExportInputs. Output: make prints a table.Export; serve, which starts our server if nothing
serves, and remove print nothing.
Exit codes: 0 done; 1 refused or failed, the reason on stderr.

Only hub/ is exported, read-only, a worker's root as nobody. A server that exports it already is used and left as it is;
one that exports other things is not ours to change. What we started or enabled is stopped and disabled by remove.
"""

import ipaddress
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
# what root does, each in one go: its rights may cost a container
WRITE = 'mkdir -p "${2%/*}" && printf %s "$1" >"$2.new" && mv "$2.new" "$2"'
# clients of an earlier run open anew at once; in the grace period every first read waits a minute and a half
START = f"systemctl enable {UNIT} && systemctl restart {UNIT} && {{ echo Y >{GRACE} || true; }}"
# two stacks that export one tree make exportfs fail although it took both, so the table is the evidence
RELOAD = f"if systemctl --quiet is-active {UNIT}; then exportfs -r || true; fi"
ERASE = f'rm "$1" && rmdir --ignore-fail-on-non-empty "${{1%/*}}" && {RELOAD}'


class ExportInputs(TypedDict):
    action: Literal["make", "serve", "remove"]
    stack: str
    hf_cache: str
    clients: list[str]
    """The workers' fabric addresses."""
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
    """Where we keep Started."""
    return folder_of(stack) / "nfs.json"


def others(stack: str) -> list[str]:
    """Other stacks of ours that export from this node."""
    files = file_of(stack).parent.glob(f"{OURS}*.exports")
    return sorted({file.stem.removeprefix(OURS) for file in files} - {stack})


def contains_mount(tree: str) -> bool:
    """Whether something is mounted inside the tree; without crossmnt that would look empty to a worker."""
    points = [unescaped(line.split()[4]) for line in MOUNTS.read_text().splitlines()]
    return any(point.startswith(tree + "/") for point in points)


def check_clients(clients: list[str]) -> None:
    """One address for each worker and nothing wider: a name or a network could let others in."""
    for client in clients:
        try:
            address = ipaddress.IPv4Address(client)
        except ValueError:
            raise SystemExit(f"{client!r} is no IPv4 address of one worker: see the nodes' fabric addresses") from None
        if address.is_unspecified or address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255"):
            raise SystemExit(f"{client} is not the address of one worker: see the nodes' fabric addresses")
    if not clients:
        raise SystemExit("there is no worker to export to: a stack of one node needs checkpoint.mode: local")


def check_open(tree: Path) -> None:
    """Refuse a hub closed to nobody. What lies above does not matter, what lies below the proof finds."""
    mode = tree.stat().st_mode & 0o777
    if mode & 0o005 != 0o005:
        raise SystemExit(
            f"{tree} has mode {mode:o}, and a worker's root is nobody on this node: run `chmod o+rx {tree}`, {LOCAL}"
        )


def foreign_paths(table: Table, stack: str, *, held: bool) -> list[str]:
    """Paths that are exported, or would be once the server starts, and that no stack of ours exports."""
    mine = configured(*(file_of(each) for each in [stack, *others(stack)]))
    known = set(table) if held else configured(EXPORTS, *file_of(stack).parent.glob("*.exports"))
    return sorted(known - mine)


def configured(*files: Path) -> set[str]:
    """The paths in these files of exports."""
    return {path for file in files if file.is_file() for path in paths_of(file.read_text())}


def make(inputs: ExportInputs) -> Export:
    stack, clients, mine = inputs["stack"], inputs["clients"], file_of(inputs["stack"])
    check_clients(clients)
    if not is_ours(folder_of(stack), stack):
        raise SystemExit(f"{folder_of(stack)} is not there or not ours: run pulumi up again, it is made first")
    tree = (Path(inputs["hf_cache"]).expanduser() / "hub").resolve()
    check_open(tree)
    text = our_text(stack, str(tree), clients, mounts_inside=contains_mount(str(tree)))

    held, serves = port_is_held(), host_serves()
    if held and not serves:
        who = ", ".join(holders()) or "a process that is neither this host's nfs-server nor a container we know"
        say(f"nfs: port 2049 is served by {who}: if it exports {tree}, the worker's proof will find it")
        # the recipe's own exporter shares the whole cache folder as the root
        return {"devices": [":/hub", ":/", f":{tree}"], "ours": False, "holder": who}
    table = read_table() if held else {}
    foreign = foreign_paths(table, stack, held=held)
    if str(tree) in foreign and exports_to(table, str(tree), clients):
        say(f"nfs: {tree} is exported already, not by us: used as it is")
        return {"devices": [device_of(table, str(tree))], "ours": False, "holder": None}
    if foreign and not mine.exists() and not others(stack):
        line = text.splitlines()[-1]
        raise SystemExit(
            f"the NFS server of this node {'exports' if held else 'is off and would export'} {', '.join(foreign)} and "
            f"not {tree}, and is not ours to change: add this line to {EXPORTS} and "
            f"{'run exportfs -ra' if held else 'start it'}, {LOCAL}: {line}"
        )
    if mine.exists() and mine.read_text() == text and exports_to(table, str(tree), clients):
        return {"devices": [device_of(table, str(tree))], "ours": True, "holder": None}
    if not shutil.which("exportfs", path=PATH):
        raise SystemExit(f"this node has no NFS server: run `sudo apt install nfs-kernel-server`, {LOCAL}")
    export(way(stack, inputs["image"], inputs["python"]), stack, text, held=held)
    table = read_table()
    if not exports_to(table, str(tree), clients):
        raise SystemExit(f"{tree} is not exported although {mine} says so: ask `sudo exportfs -rv` why, {LOCAL}")
    return {"devices": [device_of(table, str(tree))], "ours": True, "holder": None}


def export(root: Way, stack: str, text: str, *, held: bool) -> None:
    """Write our file and have a running server read it, or start the server."""
    record = record_of(stack)
    run(root, ["sh", "-c", f"{WRITE} && {RELOAD}", "sh", text, str(file_of(stack))], timeout_s=60)
    if held:
        return
    before = active_units()
    if not record.exists():
        # written first, so that a start that breaks off is taken back too
        enabled = systemctl("is-enabled", UNIT) == ["enabled"]
        keep(record, {"enabled": enabled, "units": [f"{UNIT}.service"]})
    say(f"nfs: starting {UNIT}")
    run(root, ["sh", "-c", START], timeout_s=120)
    started: Started = json.loads(record.read_text())
    keep(record, {**started, "units": sorted({*started["units"], *(set(active_units()) - set(before))})})


def keep(record: Path, started: Started) -> None:
    record.write_text(json.dumps(started))


def serve(stack: str, image: str | None, python: str) -> None:
    """Start the server of our export when nothing serves: what reads over a hard mount cannot be ended meanwhile."""
    if port_is_held():
        return
    if not file_of(stack).exists():
        say(
            "nfs: nothing serves NFS on this node. If a worker's rank still reads from it, its removal waits until the "
            "server that exported the hub cache, which is not ours, is started"
        )
        return
    say(f"nfs: {UNIT} does not run, and the worker's rank cannot go without it: starting it")
    run(way(stack, image, python), ["sh", "-c", START], timeout_s=120)


def remove(stack: str, image: str | None, python: str) -> None:
    mine, record = file_of(stack), record_of(stack)
    if not mine.exists() and not record.exists():
        return
    root = way(stack, image, python)
    if mine.exists():
        run(root, ["sh", "-c", ERASE, "sh", str(mine)], timeout_s=60)
    if record.exists():
        hand_back(root, stack, json.loads(record.read_text()))
        record.unlink()


def hand_back(root: Way, stack: str, started: Started) -> None:
    """Stop what we started, unless somebody else's export needs it by now."""
    if staying := others(stack):
        say(f"nfs: {UNIT} stays for stack {staying[0]}")
        record = record_of(staying[0])
        if is_ours(record.parent, staying[0]) and not record.exists():
            keep(record, started)
    elif host_serves() and (left := sorted(read_table())):
        say(f"nfs: {UNIT} was started by us and stays, it exports {', '.join(left)} too")
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
            f"{error.filename} cannot be used: {error.strerror}: does this node run systemd? is it its user's to read?"
        ) from None
    except subprocess.TimeoutExpired:
        raise SystemExit("systemctl gave no answer within 60 s: is the node overloaded?") from None


if __name__ == "__main__":
    main()
