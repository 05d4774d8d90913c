"""Make the checkpoint complete on a node: one revision of one repository, by huggingface_hub inside the runtime image.

Inputs (JSON argument): repo, revision, shards, size_gib, encoding_file, endpoint, image, python, hf_cache, stack.
A hub token may be in the environment as HF_TOKEN; it reaches the download on stdin alone.
Output: {"snapshot": path, "fetched": bool}; progress on stderr every few seconds.
Exit codes: 0 complete; 1 failed, the cause on stderr.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from checkpoint_files import gaps, snapshot_of

PROGRESS_S = 5.0
DOWNLOAD = """
import json, sys
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
inputs = json.loads(sys.stdin.readline())
try:
    snapshot_download(inputs["repo"], revision=inputs["revision"], token=inputs["token"] or False, max_workers=4)
except (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, HfHubHTTPError, OSError) as error:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    words = (str(error).splitlines() or ["no words"])[0]
    print(f"{type(error).__name__} status {status}: {words}", file=sys.stderr)
    sys.exit(3)
"""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bytes_on_disk(folder: Path) -> int:
    """Bytes allocated below `folder`; what a download has written so far, finished or not."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # renamed when complete
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return total


def progress(now: int, first: int, total: int, seconds: float) -> str:
    """One line on a download: bytes here of all, rate since it began, and the time left at that rate."""
    rate = (now - first) / seconds
    left = f", {(total - now) / rate:,.0f} s left" if rate > 0 and total > now else ""
    unit, name = (2**30, "GiB") if total >= 2**30 else (2**20, "MiB")
    return f"checkpoint: {now / unit:.1f} of {total / unit:.1f} {name}, {rate / 2**20:.1f} MiB/s{left}"


def report(folder: Path, total: int, done: threading.Event) -> None:
    began, first = time.monotonic(), bytes_on_disk(folder)
    while not done.wait(PROGRESS_S):
        say(progress(bytes_on_disk(folder), first, total, time.monotonic() - began))


def remove_left_over(labels: Sequence[str]) -> None:
    """End a download of this stack that outlived its update: two at once would fetch everything twice."""
    wanted = [word for label in labels for word in ("--filter", f"label={label}")]
    listed = subprocess.run(["docker", "ps", "--all", "--quiet", *wanted], capture_output=True, text=True, timeout=60)
    if ids := listed.stdout.split():
        subprocess.run(["docker", "rm", "--force", *ids], capture_output=True, timeout=60)


def download(inputs: dict[str, Any]) -> None:
    cache = Path(inputs["hf_cache"]).expanduser()
    name, labels = f"spark-{inputs['stack']}-download", (f"spark.stack={inputs['stack']}", "spark.job=download")
    remove_left_over(labels)
    argv = ["docker", "run", "--rm", "--interactive", "--name", name, "--network", "host"]
    argv += [word for label in labels for word in ("--label", label)]
    # as the user whose cache it is, so that nothing of it belongs to root
    argv += ["--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{cache}:/cache/huggingface"]
    for variable in (
        "HOME=/tmp",
        "HF_HOME=/cache/huggingface",
        f"HF_ENDPOINT={inputs['endpoint']}",
        "HF_HUB_OFFLINE=0",
        "HF_HUB_DISABLE_XET=1",
        "HF_HUB_DISABLE_PROGRESS_BARS=1",
        "HF_HUB_DISABLE_TELEMETRY=1",
        "HF_HUB_DOWNLOAD_TIMEOUT=120",
        "HF_HUB_ETAG_TIMEOUT=30",
    ):
        argv += ["--env", variable]
    argv += ["--entrypoint", inputs["python"], inputs["image"], "-c", DOWNLOAD]
    request = {"repo": inputs["repo"], "revision": inputs["revision"], "token": os.environ.get("HF_TOKEN")}
    done = threading.Event()
    ours = snapshot_of(cache / "hub", inputs["repo"], inputs["revision"]).parents[1]
    watcher = threading.Thread(target=report, args=(ours, int(inputs["size_gib"] * 2**30), done), daemon=True)
    watcher.start()
    try:
        ended = subprocess.run(
            argv, input=json.dumps(request) + "\n", text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
    finally:
        done.set()
        watcher.join()
    if ended.returncode:
        words = (ended.stderr.strip().splitlines() or ["no words"])[-1]
        raise SystemExit(
            f"{inputs['repo']} could not be downloaded from {inputs['endpoint']}: {words}{advice(words, inputs)}"
        )


def advice(words: str, inputs: dict[str, Any]) -> str:
    if "status 401" in words or "status 403" in words or "GatedRepo" in words:
        page = f"{inputs['endpoint']}/{inputs['repo']}"
        return f": accept its licence at {page} and set the token (pulumi config set --secret hf_token ...)"
    if "RevisionNotFound" in words or "RepositoryNotFound" in words:
        return ": compare repository and revision with the stack file"
    if "No space left" in words:
        return ": make room on the disk of the cache, then run pulumi up again"
    return ": run pulumi up again, the download goes on where it stopped"


def main() -> None:
    inputs = json.loads(sys.argv[1])
    snapshot = snapshot_of(Path(inputs["hf_cache"]).expanduser() / "hub", inputs["repo"], inputs["revision"])
    missing = gaps(snapshot, inputs["shards"], inputs["encoding_file"])
    if missing:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        say(f"checkpoint: {inputs['repo']} at {inputs['revision'][:8]}: {missing[0]}{more}: fetching")
        try:
            download(inputs)
        except FileNotFoundError as error:
            raise SystemExit(f"{error.filename} is not on the PATH of an SSH session on this node") from None
        missing_after = gaps(snapshot, inputs["shards"], inputs["encoding_file"])
        if missing_after:
            raise SystemExit(f"{inputs['repo']} is not whole after its download: " + "; ".join(missing_after))
    print(json.dumps({"snapshot": str(snapshot), "fetched": bool(missing)}))


if __name__ == "__main__":
    main()
