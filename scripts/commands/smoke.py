"""Ask the running pair, and describe it: KV pool, fabric, model, image, generation.

It asks one question, the same one with thinking, and shows an image to a model that sees. All are asked on the head
itself, over the same SSH as everything else, so it does not matter where the API listens; the key, if there is one,
stays on the head. The numbers are the stack's outputs, taken from the ranks' own log lines. The line `reach` says who
gets to the API: whether it answers this machine, and else the tunnel to it or what may be in the way. The document of
--json has outputs, question, answer, checks, tunnel (null when none is needed) and reach.

example:    scripts/spark smoke --stack home --question "What is 6 x 7?"
"""

import argparse
import json
import shlex
import struct
import zlib
from base64 import b64encode
from datetime import UTC, datetime
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError

from components.facts.checkpoint_plan import size
from components.settings.cluster import ClusterSettings
from components.ssh.node_script import run_script
from components.ssh.reach import place, tunnel
from components.ssh.target import SshError, resolve_nodes
from host.console import printable
from rank.probe import DIRECT, NO_THINKING, THINKING, Answers, Check, Checked, ProbeInputs
from scripts.commands import Answer, Call, waiting
from scripts.stacks import cluster_of

if TYPE_CHECKING:
    # imports Pulumi, which no verb needs
    from components.outputs import Outputs
    from components.start.wait import KvPool
    from components.verified import Verification

LIMIT_S = 300
REACH_S = 3


def checks(cluster: ClusterSettings, question: str) -> list[Check]:
    """What is asked beside the plain question."""
    thinking: Check = {"name": "thinking", "content": question, "template": THINKING}
    if not cluster.engine.limit_mm_per_prompt:
        return [thinking]
    parts = [
        {"type": "text", "text": "Which colour is this image?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(red_png()).decode()}"}},
    ]
    return [thinking, {"name": "image", "content": parts, "template": NO_THINKING}]


def red_png(side: int = 32) -> bytes:
    """A red square as a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def ask(cluster: ClusterSettings, stack: str, question: str) -> Answers:
    """The pair's answers. Raises SshError with the reason when the first one does not come."""
    inputs: ProbeInputs = {
        "base_url": cluster.engine.local_url,
        "model": cluster.engine.served_model_name[0],
        "stack": stack,
        "question": question,
        "completion_timeout_s": LIMIT_S,
        "checks": checks(cluster, question),
    }
    try:
        head, *_ = resolve_nodes(cluster)
        with waiting("waiting for the answers"):
            text = run_script(*head, "rank.probe", inputs, timeout_s=LIMIT_S * (1 + len(inputs["checks"])) + 10)
    except SshError as error:
        raise SshError(f"no answer from the pair: {error}: `pulumi up` finds out what is wrong") from None
    answer: Answers = json.loads(text)
    return answer


def trouble(url: str, model: str) -> str | None:
    """Why the API does not answer this machine; None if it does. No key is sent: 401 is an answer too.

    Something else may listen at the URL: 8888 is also the port of notebooks.
    """
    try:
        with DIRECT.open(f"{url}/models", timeout=REACH_S) as reply:
            ours = model in [row["id"] for row in json.load(reply)["data"]]
    except HTTPError as error:
        ours = error.code == 401
    except (OSError, HTTPException) as error:
        return printable(str(error), 100)
    except (KeyError, TypeError, ValueError):
        ours = False
    return None if ours else "another server answers there"


def reach(cluster: ClusterSettings, url: str, model: str, argv: list[str] | None) -> str:
    """Who gets to the API: whether it answers this machine, and else how it will."""
    problem = trouble(url, model)
    if problem is None:
        return f"{url} answers this machine"
    if argv:
        return f"{place(cluster)}; from here: {shlex.join(argv)}"
    return (
        f"{url} does not answer this machine ({problem}): set api_host to a name or an address of the head that "
        "clients reach, or look for a firewall"
    )


def answered(check: Checked) -> str:
    if check["problem"]:
        return f"{check['name']:9}failed: {check['problem']}"
    thought = f"({first_words(check['reasoning'])})   " if check["reasoning"] else ""
    return f"{check['name']:9}{thought}{check['content']}"


def first_words(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most].rsplit(' ', 1)[0]} ..."


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
    argv = tunnel(cluster, cluster.ssh_config and cluster.ssh_config.absolute())
    way = reach(cluster, outputs["api_url"], outputs["models"][0], argv)
    call.show(f"reach    {way}")
    answer = ask(cluster, stack.name, asked.question)
    call.show(f"> {asked.question}   {answer['answer']}")
    for check in answer["checks"]:
        call.show(answered(check))
    return Answer(
        {
            "stack": stack.title,
            "outputs": outputs,
            "question": asked.question,
            "answer": answer["answer"],
            "checks": answer["checks"],
            "tunnel": argv,
            "reach": way,
        },
        code=1 if any(check["problem"] for check in answer["checks"]) else 0,
    )
