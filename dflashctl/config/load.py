"""YAML and `--set` to one tree of values, each with the place that it came from. Knows no schema."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from dflashctl.errors import ConfigError

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Override:
    """A value given on the command line."""

    path: str
    """Dotted: train.optim.learning_rate."""
    value: Any
    origin: str
    """As the reader should see it: `--set` or the option's name."""


@dataclass(frozen=True)
class Tree:
    """Plain dicts, lists and scalars, and for each key path where its value was written."""

    values: dict[str, Any]
    origins: dict[Key, str] = field(default_factory=dict)
    name: str = "run.yaml"
    """What such a file is called, where nobody wrote the key in question."""
    takes_set: bool = True
    """Whether `--set` reaches it wherever it is used."""

    def place_of(self, key: Key) -> str:
        """The place of this key, or of the nearest one above it; the file's usual name if nobody wrote either."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.origins:
                return self.origins[key[:length]]
        return self.name

    def origin_of(self, key: Key) -> str:
        """Where the value at this key comes from; `default` if nobody wrote it."""
        values: Any = self.values
        for part in key:
            if not isinstance(values, dict) or part not in values:
                return "default"
            values = values[part]
        return self.place_of(key)


def parse_set(text: str) -> Override:
    """`a.b=c` as an Override; c is read as YAML, so that 3, true, null and [1, 2] are what they look like.

    Raises ConfigError.
    """
    path, equals, raw = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"--set {text}: wanted KEY=VALUE", hint="for example --set train.optim.learning_rate=3e-4")
    try:
        value = yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--set {text}: the value is not readable as YAML") from error
    return Override(path.strip(), value, "--set")


def load_tree(
    file: Path | None, overrides: tuple[Override, ...], *, name: str = "run.yaml", takes_set: bool = True
) -> Tree:
    """The file's values with the overrides on top, in order. Raises ConfigError."""
    read = Tree({}) if file is None else _read_yaml(file)
    tree = replace(read, name=name, takes_set=takes_set)
    for override in overrides:
        tree = with_override(tree, override)
    return tree


def _read_yaml(file: Path) -> Tree:
    origins: dict[Key, str] = {}
    try:
        node = yaml.compose(file.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        values = None if node is None else _construct(node, (), file, origins)
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: byte 0x{error.object[error.start]:02x}") from error
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{file}{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file}: not valid YAML: {str(error).splitlines()[0]}") from error
    except RecursionError as error:
        raise ConfigError(f"{file} holds values within values without end") from error
    if node is None:
        return Tree({})
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{file}:1: wanted sections (train:, hosts:, ...), found {node.value!r}")
    assert isinstance(values, dict)
    return Tree(values, origins)


def _construct(node: yaml.Node, key: Key, file: Path, origins: dict[Key, str]) -> Any:
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Any] = {}
        for name_node, value_node in node.value:
            name = str(name_node.value)
            where = f"{file}:{name_node.start_mark.line + 1}"
            if name in out:
                raise ConfigError(f"{where}: {'.'.join(map(str, (*key, name)))} is written twice")
            origins[(*key, name)] = where
            out[name] = _construct(value_node, (*key, name), file, origins)
        return out
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            origins[(*key, index)] = f"{file}:{item.start_mark.line + 1}"
            items.append(_construct(item, (*key, index), file, origins))
        return items
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except ValueError as error:
        raise ConfigError(f"{file}:{node.start_mark.line + 1}: {node.value}: {error}") from error
    finally:
        loader.dispose()


def with_override(tree: Tree, override: Override) -> Tree:
    """A copy of the tree with one value replaced; what stood below its key is gone with it."""
    key: Key = tuple(override.path.split("."))
    values = _replaced(tree.values, key, override)
    origins = {k: origin for k, origin in tree.origins.items() if k[: len(key)] != key}
    origins[key] = override.origin
    return replace(tree, values=values, origins=origins)


def _replaced(values: dict[str, Any], key: Key, override: Override) -> dict[str, Any]:
    name = str(key[0])
    if len(key) == 1:
        return {**values, name: override.value}
    below = values.get(name)
    if below is not None and not isinstance(below, dict):
        raise ConfigError(f"{override.origin} {override.path}: {name} is a value, it has nothing below it")
    return {**values, name: _replaced(below or {}, key[1:], override)}
