"""Make a lock of startup patches from a commit, or try a lock on a copy of the image's Python tree.

lock reads every file that a present lock names, at another commit or from a folder, shows what changed, and writes the
new lock. A stack uses it with patches.lock: FILE. check runs a lock's patches on a private copy of a tree, as a rank's
start does: a folder with vllm/ of the image's version (the wheel unpacked, the image's overlay laid over it). Neither
needs a stack or a node.

example:    scripts/spark patches lock --commit 01eed1eed05e0772e9123e817945cebdff192286 --output my-patches.yaml
            scripts/spark patches check --tree unpacked-wheel --lock my-patches.yaml --skip issue21
"""

import argparse
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

import yaml
from pydantic import ValidationError

from components.settings.base import SettingsError, complaints
from components.settings.patches import LockError, Patch, PatchSettings
from host.console import say
from patches.files import PatchError, PatchSource, checked, fetch, read
from scripts import image_tree
from scripts.commands import Answer, Call

LOCK = "mia-c444d703"


def arguments(parser: argparse.ArgumentParser) -> None:
    def absolute(text: str) -> Path:
        return Path(text).absolute()

    def lock_or_file(text: str) -> str:
        return str(absolute(text)) if text.endswith(".yaml") else text

    what = parser.add_subparsers(metavar="lock|check", dest="what", required=True)
    lock = what.add_parser("lock", help="make a lock from a commit")
    lock.add_argument("--commit", required=True, metavar="C", help="all 40 digits")
    lock.add_argument("--repository", metavar="R", help="OWNER/NAME (default: the present lock's)")
    lock.add_argument("--output", type=absolute, metavar="FILE", help="write the new lock here")
    check = what.add_parser("check", help="run a lock on a copy of a tree")
    check.add_argument("--tree", required=True, type=absolute, metavar="DIR", help="the folder that holds vllm/")
    check.add_argument(
        "--encoder", type=absolute, metavar="FILE", help="the checkpoint's encoding_dsv4.py, put in first"
    )
    check.add_argument("--skip", action="append", default=[], metavar="NAME", help="leave a patch out; may be repeated")
    for parser_of in (lock, check):
        parser_of.add_argument(
            "--lock", default=LOCK, type=lock_or_file, metavar="LOCK", help=f"the present lock (default {LOCK})"
        )
        parser_of.add_argument(
            "--folder", type=absolute, metavar="F", help="a copy of the repository to read instead of fetching"
        )


def run(call: Call) -> Answer:
    asked = call.asked
    try:
        settings = PatchSettings(lock=asked.lock, skip=getattr(asked, "skip", []), folder=asked.folder)
        return make_lock(call, settings) if asked.what == "lock" else check(call, settings)
    except ValidationError as error:
        raise SettingsError(complaints(error.errors())) from None
    except PatchError as error:
        raise SettingsError(error.lines) from None
    except (LockError, image_tree.TreeError) as error:
        raise SettingsError([str(error)]) from None


def make_lock(call: Call, settings: PatchSettings) -> Answer:
    before, asked = settings.read(), call.asked
    repository = asked.repository or before.repository
    source: PatchSource = {**settings.source, "repository": repository, "commit": asked.commit}
    contents = read(asked.folder / source["folder"], source["files"]) if asked.folder else fetch(source)
    hashes = {path: sha256(content).hexdigest() for path, content in contents.items() if isinstance(content, bytes)}
    if not hashes:
        raise PatchError([f"{path} {why}" for path, why in contents.items() if isinstance(why, str)])
    changes: dict[str, str] = {}
    patches: list[Patch] = []
    for patch in before.patches:
        if any(path not in hashes for path in patch.files):
            changes[patch.name] = "gone"
            continue
        after = patch.model_copy(
            update={"sha256": hashes[patch.file], "beside": {path: hashes[path] for path in patch.beside}}
        )
        changes[patch.name] = "same" if after == patch else "changed"
        patches.append(after)
    for name, change in changes.items():
        call.show(f"{change:8} {name}")
    lock = before.model_copy(update={"repository": repository, "commit": asked.commit, "patches": patches})
    document = lock.model_dump(mode="json", exclude_defaults=True)
    if asked.output:
        asked.output.write_text(yaml.safe_dump(document, sort_keys=False, width=120))
        say(f"written to {asked.output}: try it on a tree with patches check, then name it in patches.lock")
    return Answer({"changes": changes, "lock": document})


def check(call: Call, settings: PatchSettings) -> Answer:
    asked = call.asked
    contents = settings.contents_here() or checked(settings.source, fetch(settings.source))
    with tempfile.TemporaryDirectory() as name:
        tree = image_tree.copy_of(asked.tree, Path(name))
        if asked.encoder:
            shutil.copyfile(asked.encoder, tree / image_tree.ENCODER)
        code = image_tree.run_patches(tree, [patch.step() for patch in settings.patches], contents, settings.limit_s)
    return Answer({"lock": asked.lock, "patches": [patch.name for patch in settings.patches], "code": code}, code and 1)
