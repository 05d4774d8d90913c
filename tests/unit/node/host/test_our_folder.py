"""Our folder on a node, made and removed by the shipped script: what is not ours is refused, what is ours is gone."""

import json
import stat
import sys
from pathlib import Path

import pytest

from host import our_folder, remove_trees
from tests.unit.executables import Recorder, run_shipped

MAKE = {"action": "make", "new": False, "stack": "dev", "hf_cache": "~/.cache/huggingface"}
REMOVE = {"action": "remove", "new": False, "stack": "dev", "hf_cache": "~/.cache/huggingface"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def ours(home: Path) -> Path:
    """Our folder of stack dev, made."""
    done = run_shipped("host.our_folder", MAKE, HOME=str(home))
    assert done.returncode == 0, done.stderr
    return home / ".local/share/spark-stack/dev"


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


def test_it_is_made_with_its_marker_and_says_where_it_and_the_hub_are(home: Path):
    done = run_shipped("host.our_folder", MAKE, HOME=str(home))
    folder = home / ".local/share/spark-stack/dev"
    assert json.loads(done.stdout) == {"folder": str(folder), "hub": str(home / ".cache/huggingface/hub")}
    assert (folder / ".spark-stack").read_text() == "dev\n"
    assert (home / ".cache/huggingface/hub").is_dir()


def test_nobody_but_its_owner_looks_into_the_secrets(ours: Path):
    assert mode(ours) == "0o700"
    assert (mode(ours / "secrets"), mode(ours / "tmp"), mode(ours / "cache")) == ("0o700", "0o1777", "0o755")


def test_it_is_made_again_without_a_loss(ours: Path, home: Path):
    (ours / "cache/kernel").write_text("compiled")
    assert run_shipped("host.our_folder", MAKE, HOME=str(home)).returncode == 0
    assert (ours / "cache/kernel").read_text() == "compiled"


def test_a_folder_that_a_rank_took_over_is_left_as_it_is(ours: Path, home: Path, monkeypatch: pytest.MonkeyPatch):
    """As the user of the node: chmod of what belongs to root would fail."""
    monkeypatch.setenv("HOME", str(home))
    (ours / "tmp").chmod(0o755)
    owner = (ours / "tmp").stat().st_uid
    monkeypatch.setattr(our_folder.os, "getuid", lambda: owner + 1)  # type: ignore[attr-defined]
    our_folder.make("dev", str(home / "hf"), new=False)
    assert mode(ours / "tmp") == "0o755"


def test_a_folder_with_files_and_without_our_marker_is_refused_and_untouched(home: Path):
    """Somebody's files lie where ours would be."""
    folder = home / ".local/share/spark-stack/dev"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").write_text("x")
    done = run_shipped("host.our_folder", MAKE, HOME=str(home))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == (
        f"{folder} holds files and has no marker of stack dev, so it is not ours to use: move it away"
    )
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


def test_the_marker_of_another_stack_is_not_ours(ours: Path, home: Path):
    (ours / ".spark-stack").write_text("prod\n")
    for inputs in (MAKE, REMOVE):
        refused = run_shipped("host.our_folder", inputs, HOME=str(home), PATH=f"{no_containers(home)}:/usr/bin:/bin")
        assert refused.returncode == 1 and "marker of stack dev" in refused.stderr
    assert (ours / "cache").is_dir()


def test_a_hub_cache_that_cannot_be_made_names_the_reason(home: Path):
    """The disk that should hold it is not mounted."""
    (home / "raid").write_text("a file")
    done = run_shipped("host.our_folder", {**MAKE, "hf_cache": "~/raid/huggingface"}, HOME=str(home))
    assert done.returncode == 1
    assert done.stderr.startswith(f"the hub cache {home}/raid/huggingface/hub cannot be made: ")
    assert done.stderr.strip().endswith("is its disk mounted, and who owns its parent?")


def test_the_tilde_is_the_nodes_home_and_links_are_followed(home: Path):
    """Containers mount the path, so it must be the real one."""
    (home / "raid").mkdir()
    (home / ".cache").mkdir()
    (home / ".cache/huggingface").symlink_to(home / "raid")
    done = run_shipped("host.our_folder", MAKE, HOME=str(home))
    assert json.loads(done.stdout)["hub"] == str(home / "raid/hub")


def no_containers(home: Path) -> Path:
    """A `docker` that knows no container."""
    made = Recorder(home / f"bin{len(list(home.iterdir()))}")
    made.answer("docker")
    return made.folder


def test_removal_leaves_nothing_of_ours_and_all_that_is_not(ours: Path, home: Path):
    (ours / "cache/kernel").write_text("compiled")
    (ours / "secrets/api_key").write_text("k")
    other = home / ".local/share/spark-stack/prod"
    other.mkdir()
    (home / ".cache/huggingface/hub/blob").write_text("155 GiB")
    done = run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=f"{no_containers(home)}:/usr/bin:/bin")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not ours.exists() and other.is_dir() and (home / ".cache/huggingface/hub/blob").exists()


def test_removing_twice_is_no_failure_and_touches_no_rank(home: Path, recorder: Recorder):
    """The first half of a repair, beside ranks that the state knows."""
    recorder.answer("docker", "echo aaa")
    done = run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=recorder.path)
    assert (done.returncode, done.stderr) == (0, f"{home}/.local/share/spark-stack/dev is already gone\n")
    assert recorder.calls("docker") == []


def test_a_state_that_knows_no_folder_is_stopped_where_ranks_of_this_stack_live(
    ours: Path, home: Path, recorder: Recorder
):
    """Another state manages this pair, or its own was lost."""
    recorder.answer("docker", f"echo {'a' * 64}; echo {'b' * 64}")
    done = run_shipped("host.our_folder", {**MAKE, "new": True}, HOME=str(home), PATH=recorder.path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("2 container(s) of stack dev are on this node, but this state does not know them: ")
    assert done.stderr.endswith(f"docker rm -f {'a' * 12} {'b' * 12}\n")
    assert run_shipped("host.our_folder", MAKE, HOME=str(home), PATH=recorder.path).returncode == 0


def test_a_folder_left_without_a_rank_is_taken_over_by_a_new_state(ours: Path, home: Path, recorder: Recorder):
    recorder.answer("docker")
    done = run_shipped("host.our_folder", {**MAKE, "new": True}, HOME=str(home), PATH=recorder.path)
    assert done.returncode == 0, done.stderr


def test_without_our_marker_no_container_is_removed_either(ours: Path, home: Path, recorder: Recorder):
    (ours / ".spark-stack").unlink()
    recorder.answer("docker", "echo aaa")
    done = run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=recorder.path)
    assert done.returncode == 1
    assert done.stderr == f"{ours} lost its marker of stack dev: nothing was removed, look at it yourself\n"
    assert recorder.calls("docker") == []


def test_left_over_containers_are_found_by_label_and_removed_first(ours: Path, home: Path, recorder: Recorder):
    """An update that broke off left some."""
    recorder.answer("docker", f"[ $1 != ps ] || cat {home}/left 2>/dev/null; [ $1 != rm ] || rm {home}/left; true")
    (home / "left").write_text("aaa\nbbb\n")
    done = run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=recorder.path)
    assert done.returncode == 0, done.stderr
    assert "removing 2 left-over container(s) of stack dev" in done.stderr
    listed = ["ps", "--all", "--quiet", "--no-trunc", "--filter", "label=spark.stack=dev"]
    volumes = ["volume", "ls", "--quiet", "--filter", "label=spark.stack=dev"]
    assert recorder.calls("docker") == [listed, ["rm", "--force", "--volumes", "aaa", "bbb"], volumes, listed]


def test_a_volume_that_a_cut_removal_left_is_found_by_label_and_no_other(ours: Path, home: Path, recorder: Recorder):
    recorder.answer("docker", '[ "$1 $2" != "volume ls" ] || echo 4a95537abe88')
    assert run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=recorder.path).returncode == 0
    assert ["volume", "rm", "4a95537abe88"] in recorder.calls("docker")


def test_a_container_that_is_still_there_afterwards_is_a_failure(ours: Path, home: Path, recorder: Recorder):
    """Never "stopped" while it runs."""
    recorder.answer("docker", "[ $1 != ps ] || echo aaa")
    done = run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=recorder.path)
    assert done.returncode == 1
    assert "a container of stack dev is still there after its removal: run destroy again" in done.stderr


def test_docker_that_does_not_answer_fails_the_removal_in_its_words(ours: Path, home: Path, recorder: Recorder):
    recorder.answer("docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    done = run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=recorder.path)
    assert (done.returncode, done.stderr.strip()) == (1, "docker ps failed: Cannot connect to the Docker daemon")
    assert ours.exists()


def test_a_node_without_a_docker_program_is_said_in_words(ours: Path, home: Path, tmp_path: Path):
    done = run_shipped("host.our_folder", REMOVE, HOME=str(home), PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "docker is not on the PATH of an SSH session on this node\n")


class TestFilesOfRoot:
    """What ranks wrote as root; here by pretending to be another user."""

    @pytest.fixture(autouse=True)
    def another_user(self, ours: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        owner = ours.stat().st_uid
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.setattr(our_folder.os, "getuid", lambda: owner + 1)  # type: ignore[attr-defined]

    def test_they_are_removed_with_the_rights_of_the_image_that_wrote_them(self, ours: Path, recorder: Recorder):
        recorder.answer("docker")
        (ours / "image").write_text("repo@sha256:1\n")
        (ours / "cache/kernel").write_text("compiled")
        our_folder.remove("dev")
        [run] = [call for call in recorder.calls("docker") if call[0] == "run"]
        assert run[:8] == ["run", "--rm", "--network", "none", "--volume", f"{ours}:/ours", "--entrypoint", "python3"]
        assert run[8] == "repo@sha256:1" and sorted(run[11:]) == ["/ours/cache", "/ours/secrets", "/ours/tmp"]
        assert not ours.exists()

    def test_what_runs_as_root_removes_files_folders_and_links_but_nothing_behind_a_link(
        self, ours: Path, tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ):
        recorder.answer("docker")
        (ours / "image").write_text("repo@sha256:1\n")
        our_folder.empty(ours)
        [[*_, program, _, _, _]] = recorder.calls("docker")
        assert program == Path(remove_trees.__file__).read_text()
        kept = tmp_path / "kept"
        for path in (kept / "a", tmp_path / "x/folder/file"):
            path.parent.mkdir(parents=True)
            path.write_text("x")
        (tmp_path / "x/link").symlink_to(kept)
        (tmp_path / "x/file").write_text("x")
        monkeypatch.setattr(sys, "argv", ["-c", *(str(tmp_path / "x" / name) for name in ("folder", "link", "file"))])
        remove_trees.main()
        assert list((tmp_path / "x").iterdir()) == [] and (kept / "a").exists()

    def test_without_a_recorded_image_the_way_out_is_said_and_nothing_is_removed(self, ours: Path, recorder: Recorder):
        recorder.answer("docker")
        with pytest.raises(SystemExit) as ended:
            our_folder.remove("dev")
        assert str(ended.value) == (
            f"{ours} holds files of root and records no image: remove it with sudo rm -r {ours}"
        )
        assert (ours / "cache").is_dir()
