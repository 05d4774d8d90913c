"""What only the text of a stack file shows: YAML has read 025000 as 10752 before the program gets the value. Pure."""

import re
from collections.abc import Iterator

import yaml

OCTAL = re.compile(r"[-+]?0[0-9]+")


def octal_numbers(text: str) -> list[str]:
    """A line for each bare number with a leading zero below a `cluster` key; nothing for a text that is not YAML."""
    try:
        document = yaml.compose(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return []
    return [
        f"{path}: {value} has a leading zero, so YAML reads it as another number: write it without, or in quotes"
        for path, value in bare_scalars(document, ())
        if OCTAL.fullmatch(value) and path != "profile"
    ]


def bare_scalars(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Path below the cluster, and text, of every scalar without quotes."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from bare_scalars(value, (*path, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield from bare_scalars(value, (*path, str(number)))
    elif isinstance(node, yaml.ScalarNode) and not node.style:
        above, cluster, below = "/".join(path).partition(":cluster/")
        if cluster and "/" not in above.removeprefix("config/"):
            yield below, str(node.value)
