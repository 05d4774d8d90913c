"""What the lab needs from a pair of nodes of any kind. containers/ and machines/ implement it."""

from __future__ import annotations

from typing import Protocol

from lab.place import Node, Place

CLEAN = "clean"
"""The state after a first `up`: no image, no checkpoint, no container."""


class Nodes(Protocol):
    """Both nodes of one place. A method that cannot do its work raises LabError with the way out."""

    @property
    def place(self) -> Place:
        """The pair's folder, kind and number."""

    @property
    def about(self) -> str:
        """What the nodes are and what they run on, in one line for `status`."""

    @property
    def states(self) -> set[str]:
        """The names of the kept states that both nodes can go back to."""

    def runs(self, node: Node) -> bool:
        """True while the node has power."""

    def power(self, node: Node) -> str:
        """The node's power in a word or two, for `status`."""

    def prepare(self) -> None:
        """Make sure of what services and nodes need before they start: programs, networks."""

    def up(self, *, fresh: bool) -> None:
        """Start what is not running, and return when both answer ssh and Docker. `fresh`: make new nodes first."""

    def down(self, *, discard: bool) -> None:
        """End both nodes. What is kept depends on their kind."""

    def save(self, state: str) -> None:
        """Keep the present state of both nodes."""

    def restore(self, state: str) -> None:
        """Bring both nodes back to `state`, one of `states`, and return when they answer."""

    def power_cut(self, node: Node) -> None:
        """Cut the node's power."""

    def power_on(self, node: Node) -> None:
        """Boot a node that is off, and return when it answers."""

    def reboot(self, node: Node) -> None:
        """Reboot the node cleanly, and return when it answers."""

    def apply_cable(self) -> None:
        """Set the fabric's carrier: up if the cable is in and the other end has power."""
