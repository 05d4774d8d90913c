"""The state of a rank's container is Docker's own, asked over the ssh program."""

import pytest

from components.start.rank_state import RankState
from tests.unit.executables import Recorder
from tests.unit.start.ranks import rank


@pytest.mark.parametrize(
    ("does", "state"),
    [
        ("""echo '{"Running":true,"ExitCode":0}'""", RankState(running=True, exit_code=0)),
        (
            """echo '{"Running":true,"ExitCode":0,"Health":{"Status":"healthy"}}'""",
            RankState(running=True, healthy=True, exit_code=0),
        ),
        (
            """echo '{"OOMKilled":true,"ExitCode":137,"Error":"","FinishedAt":"2026-11-30T07:00:03Z"}'""",
            RankState(exit_code=137, oom_killed=True, finished_at="2026-11-30T07:00:03Z"),
        ),
        ("echo 'No such object: spark-dev-rank0' >&2; exit 1", RankState(lost="No such object: spark-dev-rank0")),
        ("exit 124", RankState(lost="docker inspect ended with 124")),
    ],
)
def test_a_containers_state_is_docker_s_own(does: str, state: RankState, recorder: Recorder):
    recorder.answer("ssh", does)
    assert rank("head", 0).inspect() == state
    [call] = recorder.calls("ssh")
    assert call[-1] == "timeout 20 docker inspect --format '{{json .State}}' spark-dev-rank0"
