"""The short pass on machines that is part of `make test`: a first `up`, a power cut, NFS.

It repeats claims of other files, in the order of one pair's life. The other files here have everything that needs a
kernel of its own.
"""

from tests.lab import test_first_light as first_light
from tests.lab.machines import test_nfs
from tests.lab.machines.test_nfs import reading
from tests.lab.pair import Stack, ask, lab, words_of
from tests.lab.test_first_light import first_up

__all__ = ["first_up", "reading"]


def test_one_up_takes_clean_machines_to_an_answer(stack: Stack, first_up: str) -> None:
    first_light.test_one_up_takes_clean_nodes_to_an_answer(stack, first_up)


def test_each_rank_has_the_gid_index_of_its_own_kernels_table(stack: Stack, first_up: str) -> None:
    first_light.test_each_rank_has_its_own_nodes_gid_index_and_no_empty_nccl_variable(stack, first_up)


def test_a_second_up_changes_nothing_and_restarts_nothing(stack: Stack, first_up: str) -> None:
    first_light.test_a_second_up_changes_nothing_and_restarts_nothing(stack, first_up)


def test_a_worker_that_lost_its_power_serves_again_after_one_up(stack: Stack, first_up: str) -> None:
    lab("power-cut", "worker")
    lab("power-on", "worker")
    assert "worker's rank" in words_of(stack.up().text)
    assert "4183" in ask()


def test_a_worker_without_a_copy_serves_from_the_heads_by_the_kernels_nfs(reading: Stack) -> None:
    test_nfs.test_a_worker_without_a_copy_serves_from_the_heads(reading)


def test_destroy_takes_back_the_export_and_what_was_started_for_it(reading: Stack) -> None:
    test_nfs.test_destroy_takes_back_the_export_and_what_was_started_for_it(reading)
