"""What a real power cut loses and a real reboot changes: claims of the container tests, on kernels of their own."""

from tests.lab import test_checkpoint as checkpoint
from tests.lab import test_fabric as fabric
from tests.lab.checkpoint import BEFORE
from tests.lab.pair import NODES, Stack, hub, identities, lab, on
from tests.lab.test_checkpoint import a_good_hub

__all__ = ["a_good_hub"]


def test_a_head_that_is_rebooted_while_it_downloads_goes_on_with_what_is_there(stack: Stack) -> None:
    stack.up(None, *BEFORE)
    checkpoint.test_a_head_that_is_rebooted_while_it_downloads_goes_on_with_what_is_there(stack)


def test_a_worker_that_loses_power_while_it_mirrors_is_whole_after_the_next_up(stack: Stack) -> None:
    checkpoint.test_a_worker_that_loses_power_while_it_mirrors_is_whole_after_the_next_up(stack)


def test_an_index_that_drifted_over_a_reboot_is_used_by_the_next_start(stack: Stack) -> None:
    hub()
    stack.up()
    fabric.test_an_index_that_drifted_over_a_reboot_is_used_by_the_next_start(stack)


def test_what_a_destroy_removed_is_not_back_after_a_power_cut(stack: Stack) -> None:
    """A container removed seconds before a power cut once came back: dockerd's files were not on disk yet."""
    assert len(identities()) == 2
    stack.destroy()
    for node in NODES:
        lab("power-cut", node)
    for node in NODES:
        lab("power-on", node)
        assert on(node, "docker ps -aq --filter label=spark.stack") == ""
