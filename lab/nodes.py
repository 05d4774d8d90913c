"""What the lab asks of a pair of nodes, whatever they are made of; containers/ and machines/ implement it."""

from __future__ import annotations

from typing import Protocol

from lab.place import Node, Place

CLEAN = "clean"
"""The state of a first `up`: no image, no checkpoint, no container."""


class Nodes(Protocol):
    """Both nodes of one place. Every method raises LabError for what cannot be done, with the way out."""

    @property
    def place(self) -> Place:
        """Folder, kind and number of the pair."""

    @property
    def about(self) -> str:
        """One line for `status`: what the nodes are and what they run on."""

    @property
    def states(self) -> set[str]:
        """Names of the kept states that both nodes can come back to."""

    def runs(self, node: Node) -> bool:
        """True while the node has power."""

    def power(self, node: Node) -> str:
        """One word or two on the node's power, for `status`."""

    def prepare(self) -> None:
        """What must be there before services and nodes start: programs, networks."""

    def up(self, *, fresh: bool) -> None:
        """Start what does not run; return when both answer ssh and Docker. `fresh`: new nodes first."""

    def down(self, *, discard: bool) -> None:
        """End both nodes; see each kind for what is kept."""

    def save(self, state: str) -> None:
        """Keep the present state of both nodes."""

    def restore(self, state: str) -> None:
        """Both nodes as they were when `state`, one of `states`, was kept; return when they answer."""

    def power_cut(self, node: Node) -> None:
        """The node loses its power at once."""

    def power_on(self, node: Node) -> None:
        """Boot a node that is off; return when it answers."""

    def reboot(self, node: Node) -> None:
        """Clean reboot; return when the node is back."""

    def apply_cable(self) -> None:
        """Set the fabric's carrier: up while the cable is in and the other end has power."""
