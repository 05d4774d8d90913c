"""The command line of `lab/lab`: what it accepts, and which part of the lab does it."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

from lab import access, fabric, faults, pair, status
from lab.machines.pair import SUSPENDED
from lab.nodes import CLEAN
from lab.place import CONTAINERS, KINDS, NODE_ROOT, PAIRS, Node, Place
from lab.report import LabError, elapsed_s, say

SUDOERS = "/etc/sudoers.d/spark"
RESERVED = (CLEAN, SUSPENDED)

DESCRIPTION = """\
Two nodes on this host stand in for a pair of Sparks, each with its own sshd, Docker and GID tables. They are containers
(ready in seconds; need root, and a Docker daemon or docker.io), or virtual machines with kernels of their own (ready in
minutes). There is no GPU: nvidia-smi and the container hook are stand-ins.

exit codes: 0 done; 1 refused or failed, with the reason; 2 wrong usage; `ssh` exits with the remote command's code.
environment: SPARK_LAB (the pair's folder; default: .lab/ of the checkout), SPARK_STACK_CACHE (where images are kept),
LAB_ACCEL (for machines: kvm or tcg; default: kvm if the CPU offers it)."""


def node(name: str) -> Node:
    """The node called `name`."""
    nodes = Place.of_environment().nodes
    for candidate in nodes:
        if name == candidate.name:
            return candidate
    names = " and ".join(candidate.name for candidate in nodes)
    raise argparse.ArgumentTypeError(f"there is no node {name!r}: the nodes are {names}")


def state_name(name: str) -> str:
    """A name for a kept state. QEMU's monitor must take it as one word, and Docker as a tag."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", name):
        raise argparse.ArgumentTypeError(f"{name!r}: a state's name may have letters, digits, - and _")
    return name


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `work` to its function."""
    plain = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="lab", description=DESCRIPTION, formatter_class=plain)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, work: Callable[[Place, argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=summary, description=summary)
        added.set_defaults(work=work)
        return added

    up = command("up", do_up, "start what is not running; return when nodes and services answer")
    up.add_argument("--fresh", action="store_true", help="make new nodes first; what the old ones hold is lost")
    up.add_argument(
        "--nodes", choices=KINDS, help=f"their kind; default: the kind they were made as, {CONTAINERS} at first"
    )
    up.add_argument(
        "--pair",
        type=int,
        choices=range(PAIRS),
        metavar="N",
        help=f"the addresses to use, for pairs side by side: 0 to {PAIRS - 1}",
    )
    up.add_argument("--ring", action="store_true", help="three node-containers, with a link between each two")
    down = command("down", do_down, "end nodes and services; remove containers, suspend machines until the next `up`")
    down.add_argument("--discard", action="store_true", help="remove machines too")
    command("guard", do_guard, "run `down --discard` when this command's stdin ends: for a process that may be killed")
    command("status", do_status, "show both nodes and the services as a table; exit 1 if the lab is not up")
    ssh = command("ssh", do_ssh, "log in to a node as spark, or run a command there")
    ssh.add_argument("--root", action="store_true", help="as root")
    ssh.add_argument("node", type=node)
    ssh.add_argument("command", nargs=argparse.REMAINDER)
    reset = command(
        "reset", do_reset, "bring both nodes back to a kept state in seconds; clear faults, put the cable in"
    )
    reset.add_argument(
        "state", nargs="?", type=state_name, default=CLEAN, help="default: clean, the state after the first up"
    )
    snapshot = command(
        "snapshot", do_snapshot, "keep the state of both nodes for `reset NAME`; of containers, only the disks"
    )
    snapshot.add_argument("state", type=state_name)
    command(
        "power-cut",
        do_power_cut,
        "cut a node's power; a container keeps even what it had not synced",
    ).add_argument("node", type=node)
    command("power-on", do_power_on, "boot a node that is off, and wait for it").add_argument("node", type=node)
    command("reboot", do_reboot, "reboot a node cleanly, and wait for it").add_argument("node", type=node)
    command("cable", do_cable, "pull the fabric's cable out, or put it in").add_argument(
        "position", choices=("out", "in")
    )
    addresses = command(
        "addresses",
        do_addresses,
        "set the addresses of the fabric's first port from the next boot on, and the next /24 of each on the twin port"
        " (192.168.101.2 beside 192.168.100.2). Their order is the order of the GID table's rows. Without ADDR: print"
        " them",
    )
    addresses.add_argument("node", type=node)
    addresses.add_argument("address", nargs="*", metavar="ADDR", help="IPv4 address; /24 unless a length is given")
    addresses.add_argument(
        "--first", action="store_true", help="set only the first port, so that the node's HCAs disagree"
    )
    addresses.add_argument("--default", action="store_true", help="the addresses that the image ships, on both ports")
    addresses.add_argument("--now", action="store_true", help="change the running ports at once, too")
    values = command("set", do_set, "give a node values of its own until its next boot; without values: list them")
    values.add_argument("node", type=node)
    values.add_argument(
        "values", nargs="*", metavar="NAME=VALUE", help="mem_available_gib=3, disk_mib=20, clock_s=90 ..."
    )
    sudo = command("sudo", do_sudo, "allow or refuse `sudo -n` for user spark")
    sudo.add_argument("node", type=node)
    sudo.add_argument("allowed", choices=("on", "off"))
    names = ", ".join(faults.NAMES)
    fault = command("fault", do_fault, f"give a rank's stand-in engine a fault: {names}; none removes it")
    fault.add_argument("rank", metavar="RANK|clear", help="0, 1 ...; clear removes all faults")
    fault.add_argument("name", nargs="?", choices=(*faults.NAMES, faults.NONE), metavar="NAME")
    return top


def do_up(place: Place, args: argparse.Namespace) -> int:
    asked = replace(place, kind=args.nodes or place.kind, number=place.number if args.pair is None else args.pair)
    asked = replace(asked, ring=args.ring or asked.ring)
    if asked.ring and asked.kind != CONTAINERS:
        raise LabError("a ring is made of node-containers only: lab/lab up --ring --nodes containers")
    if asked != place and any(pair.of(place).power(each) != "not made" for each in place.nodes):
        raise LabError(
            f"this lab's pair is made of {place.kind}, with the addresses of pair {place.number}\n"
            "  way out: lab/lab down --discard first, or another folder: SPARK_LAB=.lab/other lab/lab up --pair N ..."
        )
    with pair.locked(asked) as nodes:
        pair.up(nodes, fresh=args.fresh)
    say(f"up: ssh -F {_short(place.ssh_config)} {' | '.join(each.alias for each in asked.nodes)}")
    return 0


def do_down(place: Place, args: argparse.Namespace) -> int:
    with pair.locked(place) as nodes:
        pair.down(nodes, discard=args.discard)
    return 0


def do_guard(place: Place, args: argparse.Namespace) -> int:
    sys.stdin.buffer.read()
    place = place.as_made()
    # our output goes to a file: its reader ended with the guarded process
    place.root.mkdir(parents=True, exist_ok=True)
    log = os.open(place.root / "guard.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    with pair.locked(place) as nodes:
        pair.down(nodes, discard=True)
    return 0


def do_status(place: Place, args: argparse.Namespace) -> int:
    up, text = status.report(pair.of(place))
    print(text, flush=True)
    return 0 if up else 1


def do_ssh(place: Place, args: argparse.Namespace) -> int:
    _running(place, args.node)
    access.make_control_folder(place)
    command = access.ssh_command(place, args.node, user="root" if args.root else "spark")
    os.execvp(command[0], [*command, *args.command])


def do_reset(place: Place, args: argparse.Namespace) -> int:
    with pair.locked(place) as nodes:
        pair.reset(nodes, args.state)
    say(f"both nodes are back in state `{args.state}` after {elapsed_s():.1f} s")
    return 0


def do_snapshot(place: Place, args: argparse.Namespace) -> int:
    if args.state in RESERVED:
        raise LabError(f"the lab itself keeps the state `{args.state}`: choose another name")
    with pair.locked(place) as nodes:
        nodes.save(args.state)
    return 0


def do_power_cut(place: Place, args: argparse.Namespace) -> int:
    with pair.locked(place) as nodes:
        nodes.power_cut(args.node)
    return 0


def do_power_on(place: Place, args: argparse.Namespace) -> int:
    with pair.locked(place) as nodes:
        nodes.power_on(args.node)
    return 0


def do_reboot(place: Place, args: argparse.Namespace) -> int:
    with pair.locked(place) as nodes:
        nodes.reboot(args.node)
    return 0


def do_cable(place: Place, args: argparse.Namespace) -> int:
    with pair.locked(place) as nodes:
        if args.position == "out":
            place.cable.touch()
        else:
            place.cable.unlink(missing_ok=True)
        nodes.apply_cable()
    say(f"cable {args.position}")
    return 0


def do_set(place: Place, args: argparse.Namespace) -> int:
    _running(place, args.node)
    print(access.demand(place, args.node, ["lab-set", *(args.values or ["--help"])]), end="")
    return 0


def do_addresses(place: Place, args: argparse.Namespace) -> int:
    _running(place, args.node)
    ports = fabric.parse_ports(access.demand(place, args.node, ["cat", "/etc/lab/fabric"]))
    given = fabric.parse_addresses(args.address)
    if args.default and given:
        raise LabError("give addresses or --default, not both")
    changes: list[tuple[str, list[IPv4Interface]]] = []
    if args.default:
        changes = [(port.netdev, list(port.addresses)) for port in fabric.shipped_ports(args.node)]
    elif given:
        twin = [] if args.first else [(ports[1].netdev, [fabric.on_twin(address) for address in given])]
        changes = [(ports[0].netdev, given), *twin]
    with pair.locked(place):
        for netdev, addresses in changes:
            access.demand(place, args.node, ["lab-fabric", "set", netdev, *map(str, addresses)])
        if args.now:
            access.demand(place, args.node, ["lab-fabric", "apply"])
    print(access.demand(place, args.node, ["grep", "-v", "^#", "/etc/lab/fabric"]), end="")
    if changes and not args.now:
        say(f"{args.node.name}: has these addresses from its next boot on (lab/lab reboot {args.node.name})")
    return 0


def do_sudo(place: Place, args: argparse.Namespace) -> int:
    _running(place, args.node)
    if args.allowed == "on":
        rule = (NODE_ROOT / SUDOERS.lstrip("/")).read_text()
        script = f"umask 227; cat >{SUDOERS}.new && mv {SUDOERS}.new {SUDOERS}"
        access.demand(place, args.node, ["sh", "-c", script], stdin=rule)
    else:
        access.demand(place, args.node, ["rm", "-f", SUDOERS])
    say(f"{args.node.name}: sudo -n {'works' if args.allowed == 'on' else 'is refused'} for spark")
    return 0


def do_fault(place: Place, args: argparse.Namespace) -> int:
    if args.rank == "clear" and args.name is None:
        faults.clear(place)
    elif args.rank in {str(each.rank) for each in place.nodes} and args.name is not None:
        faults.put(place, int(args.rank), args.name)
    else:
        raise LabError("usage: lab fault RANK NAME, or lab fault clear; RANK is 0 or 1")
    active = faults.read(place)
    say(f"faults: {', '.join(f'rank {rank} {name}' for rank, name in active.items()) or 'none'}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = parser().parse_args(arguments)
    work: Callable[[Place, argparse.Namespace], int] = args.work
    try:
        return work(Place.of_environment(), args)
    except LabError as refusal:
        print(f"lab: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; `lab/lab up` starts what is still missing", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader, `head` perhaps, closed the pipe: nothing more may be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _running(place: Place, node: Node) -> None:
    if not pair.of(place).runs(node):
        raise LabError(f"{node.name} is not running: lab/lab up, or lab/lab power-on {node.name}")


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
