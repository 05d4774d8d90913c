"""Runs of the program that several tests read: the shipped stacks, and the lab's pair changed or damaged."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from components import program, remote
from components.ssh.target import Resolved, Target, targets_of
from tests.program.pair import document
from tests.program.runner import API_KEY, DIGEST, HF_TOKEN, PRIVATE_KEY, Engine, Runner, resolved
from tests.unit.stacks import REVISION


@pytest.fixture(scope="session")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """The program on this machine, whose ssh program and keys are never asked."""
    folder = tmp_path_factory.mktemp("project")
    (folder / ".lab").mkdir()
    (folder / ".lab/runtime-image.digest").write_text(DIGEST + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "resolve_nodes", lambda cluster: [*map(resolved, targets_of(cluster))])
        patch.setattr(remote, "key_file", lambda resolved: None)
        patch.setattr(remote, "host_key", lambda resolved: f"ssh-ed25519 AAAA-{resolved.host}")
        loop = asyncio.new_event_loop()
        yield Runner(folder, patch, loop)
        loop.close()


@pytest.fixture(scope="session")
def dev(run_program: Runner) -> Engine:
    """The lab's stack as shipped, on a healthy pair without a rank."""
    return run_program("dev", positions=True)


@pytest.fixture(scope="session")
def example(run_program: Runner) -> Engine:
    """The example of a real pair as shipped."""
    return run_program("example", positions=True)


@pytest.fixture(scope="session")
def secretive(run_program: Runner) -> Engine:
    """The lab's stack with both secrets."""
    return run_program("dev", secrets={"api_key": API_KEY, "hf_token": HF_TOKEN})


@pytest.fixture(scope="session")
def changed(run_program: Runner, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The lab's stack on another address, with a forced index, reached with a key file and through a jump host."""
    file = tmp_path_factory.mktemp("keys") / "id_ed25519"
    file.write_text(PRIVATE_KEY)

    def change(cluster: dict[str, Any]) -> None:
        cluster["engine"].update(host="2001:db8::10", port=9000, allow_unauthenticated_lan=True)
        cluster.update(fabric={"gid_index": 5})

    def resolve_nodes(cluster: Any) -> list[tuple[Target, Resolved]]:
        return [resolved(each, proxy_jump="jump@bastion.example.net:2200") for each in targets_of(cluster)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "resolve_nodes", resolve_nodes)
        patch.setattr(remote, "resolve", lambda target: Resolved(target.host, target.user, target.port, [], []))
        patch.setattr(remote, "key_file", lambda resolved: file)
        return run_program("dev", change, [document(number, 5, arch="x86_64") for number in (1, 2)])


@pytest.fixture(scope="session")
def damaged(run_program: Runner) -> Engine:
    """A head that was booted, a worker without image and with a part of the checkpoint, whose GID table moved."""
    head, worker = document(1, 3, arch="x86_64"), document(2, 5, arch="x86_64")
    head["boot_id"] = "another"
    worker["checkpoint"] = {
        "gaps": ["model-00007-of-00048.safetensors is missing", "another"],
        "revisions": [REVISION],
    }
    worker["image"] = {"present": False}
    return run_program("dev", lambda cluster: cluster.update(fabric={"gid_index": "unset"}), [head, worker])


@pytest.fixture
def engine(stack: str, request: pytest.FixtureRequest) -> Engine:
    """The stack that a test's parameter names, as shipped."""
    shipped_engine: Engine = request.getfixturevalue(stack)
    return shipped_engine
