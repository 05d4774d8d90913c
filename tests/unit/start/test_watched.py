"""What a person reads about one rank among the others."""

from components.start.watched import doing
from tests.unit.start.ranks import rank
from tests.unit.start.test_rank_log import MEETING


def test_a_rank_that_waits_is_shown_with_those_it_waits_for():
    ranks = [rank("head", 0), rank("worker", 1), rank("worker2", 2)]
    for one in ranks[:2]:
        one.log.feed(MEETING)
    assert [doing(one, ranks) for one in ranks] == [
        "waits at the rendezvous for worker2",
        "waits at the rendezvous for worker2",
        "is created",
    ]
    ranks[2].log.feed(MEETING)
    assert doing(ranks[0], ranks) == "waits at the rendezvous for worker and worker2", "all are there, and none gets on"
