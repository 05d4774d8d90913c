"""What the documents say is true of the project."""

import re

import pytest
import yaml

from components.rank.argv import serve_argv
from components.rank.env import AT_START, rank_env
from components.settings.base import PROJECT_DIR
from components.settings.profile import profiles
from components.start.troubleshooting import markdown
from tests.unit.stacks import cluster


def test_the_troubleshooting_page_is_the_table_that_up_quotes_from():
    page = (PROJECT_DIR / "docs" / "troubleshooting.md").read_text()
    assert page == markdown(), "python -m components.start.troubleshooting > docs/troubleshooting.md"


@pytest.mark.parametrize("profile", profiles())
def test_the_recipe_page_has_a_row_for_all_that_a_rank_gets(profile: str):
    page, stack = (PROJECT_DIR / "docs" / "recipe.md").read_text(), cluster(profile)
    flags = [word for rank in (0, 1) for word in serve_argv(stack, rank) if word.startswith("--")]
    names = [*rank_env(stack, 0), *AT_START]
    assert [name for name in (*flags, *names) if f"`{name}`" not in page] == []


def test_every_file_that_a_document_links_to_is_there():
    for page in [PROJECT_DIR / "README.md", *(PROJECT_DIR / "docs").glob("*.md"), *(PROJECT_DIR / "lab").rglob("*.md")]:
        links = re.findall(r"\]\(([^)#]+)", page.read_text())
        missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
        assert missing == [], page


def test_every_stack_file_is_for_this_project():
    name = yaml.safe_load((PROJECT_DIR / "Pulumi.yaml").read_text())["name"]
    for stack in PROJECT_DIR.glob("Pulumi.*.yaml"):
        assert f"{name}:cluster" in yaml.safe_load(stack.read_text())["config"], stack
