"""The netdevs of a node as a fabric needs them: their MTU, and the width of the PCIe link behind them."""

from __future__ import annotations

from facts.document import LinkFacts
from gid.sysfs import names_in, read_text, sysfs_root


def number(path: str) -> int | None:
    text = read_text(path)
    return int(text) if text and text.isdecimal() else None


def read() -> dict[str, LinkFacts]:
    """By netdev; a number is None where the kernel tells none."""
    root = f"{sysfs_root()}/class/net"
    return {
        name: LinkFacts(
            number(f"{root}/{name}/mtu"),
            number(f"{root}/{name}/device/current_link_width"),
            number(f"{root}/{name}/device/max_link_width"),
        )
        for name in names_in(root)
        if name != "lo"
    }
