"""Ask the running pair one question, and describe it: KV pool, fabric, model, image, generation.

The question is asked on the head itself, over the same SSH as everything else, so it does not matter where the API
listens; the key, if there is one, stays on the head. The numbers are the stack's outputs, taken from the ranks' own log
lines. Where the API binds the head's loopback, the command of a tunnel to it is shown. The document of --json has
outputs, question, answer, and tunnel (null when none is needed).

example:    scripts/spark smoke --stack home --question "What is 6 x 7?"
"""

import argparse
import json
import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from components.facts.checkpoint_plan import size
from components.settings.cluster import ClusterSettings
from components.ssh.node_script import run_script
from components.ssh.target import SshError, resolve_nodes, targets_of
from rank.probe import ProbeInputs
from scripts.commands import Answer, Call, waiting
from scripts.stacks import cluster_of

if TYPE_CHECKING:
    # imports Pulumi, which no verb needs
    from components.outputs import Outputs
    from components.start.wait import KvPool
    from components.verified import Verification

LIMIT_S = 300


def ask(cluster: ClusterSettings, stack: str, question: str) -> str:
    """The answer to one question. Raises SshError with the reason when none comes back."""
    inputs: ProbeInputs = {
        "base_url": cluster.engine.local_url,
        "model": cluster.engine.served_model_name[0],
        "stack": stack,
        "question": question,
        "completion_timeout_s": LIMIT_S,
    }
    try:
        head, *_ = resolve_nodes(cluster)
        with waiting("waiting for the answer"):
            answer = run_script(*head, "rank.probe", inputs, timeout_s=LIMIT_S + 10)
    except SshError as error:
        raise SshError(f"no answer from the pair: {error}: `pulumi up` finds out what is wrong") from None
    return str(json.loads(answer)["answer"])


def tunnel(cluster: ClusterSettings) -> list[str] | None:
    """argv of a tunnel from this machine's loopback to the API; None unless the API binds the head's loopback.

    It does not share a connection: one that the user's configuration keeps open would keep the port open after Ctrl-C.
    """
    engine, port = cluster.engine, cluster.engine.port
    if not engine.binds_loopback:
        return None
    head = targets_of(cluster)[0]
    config = ["-F", str(head.config.absolute())] if head.config else []
    return ["ssh", "-N", "-S", "none", "-L", f"{port}:{engine.local_host}:{port}", *config, *head.destination]


def duration(seconds: int) -> str:
    return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"


def lines(outputs: "Outputs", took: int | None, note: str) -> list[str]:
    """The outputs, one line for each subject, without what the ranks did not print."""
    pool, image = outputs["kv_pool"], outputs["image"]
    up = f"up in {duration(took)}" if took is not None else ""
    about = " ".join(part for part in (up, f"({note})" if note else "") if part)
    shown = [f"serving  {outputs['models'][0]}  at {outputs['api_url']}    {about}".rstrip()]
    if kv := kv_line(pool):
        shown.append(f"kv pool  {kv}")
    fabric = [f"{role} {outputs['hca'][role].lstrip('=')} gid {gid}" for role, gid in outputs["gid_index"].items()]
    shown.append("fabric   " + "    ".join(fabric))
    model = [f"{role} {verified(checkpoint)}" for role, checkpoint in outputs["checkpoint"].items()]
    shown.append("    ".join([f"model    {outputs['model']['revision'][:8]}", *model]))
    repository, _, digest = image.partition("@")
    shown.append(f"image    {repository.rpartition('/')[2]}@{digest[:19]}    generation {outputs['generation']}")
    return shown


def kv_line(pool: "KvPool") -> str:
    """What the ranks printed of their pool; a log that was rotated away, or an older engine, leaves parts out."""
    memory, tokens, expected = pool.get("kv_memory_gib"), pool.get("kv_tokens"), pool.get("expected_kv_tokens")
    most, context = pool.get("max_concurrency"), pool.get("context_tokens")
    parts = [
        f"{memory:g} GiB a rank" if memory else "",
        f"{tokens:,} tokens" if tokens else "",
        f"{most:g} requests of {context:,}" if most and context else "",
        f"{tokens / expected:.0%} of what others have" if tokens and expected else "",
    ]
    return ", ".join(part for part in parts if part)


def verified(checkpoint: "Verification | None") -> str:
    """How much of a node's checkpoint was verified, and when."""
    if checkpoint is None:
        return "not verified"
    when = datetime.fromisoformat(checkpoint["verified_at"]).astimezone(UTC)
    over_nfs = " over NFS" if checkpoint["how"] == "nfs" else ""
    return f"{size(checkpoint['bytes'])}{over_nfs} verified {when:%Y-%m-%d %H:%M} UTC"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--question", default="What is 47 x 89?", metavar="Q", help="default: %(default)s")
    parser.add_argument("--took", type=int, metavar="SECONDS", help="how long the last `up` took, to show")
    parser.add_argument("--note", default="", metavar="TEXT", help="shown after the endpoint")


def run(call: Call) -> Answer:
    asked, stack = call.asked, call.stack
    outputs = stack.outputs()
    cluster = cluster_of(stack.values())
    for line in lines(outputs, asked.took, asked.note):
        call.show(line)
    argv = tunnel(cluster)
    if argv:
        call.show(f"from here  {shlex.join(argv)}")
    answer = ask(cluster, stack.name, asked.question)
    call.show(f"> {asked.question}   {answer}")
    return Answer(
        {
            "stack": stack.title,
            "outputs": outputs,
            "question": asked.question,
            "answer": answer,
            "tunnel": argv,
        }
    )
