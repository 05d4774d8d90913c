"""The short pass on kernels of their own that `make test` makes: first light, a power cut, NFS.

The claims are those of other files here and of the container tier; their order here is that of one pair's life.
"""

from tests.lab.machines.test_nfs import (
    reading,
    test_a_worker_without_a_copy_serves_from_the_heads,
    test_destroy_takes_back_the_export_and_what_was_started_for_it,
)
from tests.lab.pair import Stack, ask, identities, lab, words_of
from tests.lab.test_first_light import (
    first_up,
    test_a_second_up_changes_nothing_and_restarts_nothing,
    test_each_rank_has_its_own_nodes_gid_index_and_no_empty_nccl_variable,
    test_one_up_takes_clean_nodes_to_an_answer,
)

one_up = test_one_up_takes_clean_nodes_to_an_answer
