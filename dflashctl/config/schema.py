"""Trees of values against the models that they must fit: unknown keys, bad values, origins. Knows no file by name."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dflashctl.config.load import Key, Tree
from dflashctl.errors import ConfigError
from dflashctl_remote.spec.base import Spec

S = TypeVar("S", bound=Spec)


@dataclass(frozen=True)
class Resolved:
    """One value of a section as it will be used."""

    section: str
    path: str
    value: Any
    origin: str


def dotted(key: Key) -> str:
    return ".".join(map(str, key))


def refusal(tree: Tree, key: Key, said: str, hint: str = "") -> ConfigError:
    """What to raise for the value at this key."""
    return ConfigError(f"{tree.place_of(key)}: {dotted(key)}: {said}", hint=hint)


def values_at(tree: Tree, key: Key) -> Any:
    """What stands at the key; None if nothing does. Raises ConfigError where a section holds a bare value."""
    values: Any = tree.values
    for depth, part in enumerate(key):
        if values is None:
            return None
        if not isinstance(values, dict):
            above = key[:depth]
            raise ConfigError(f"{tree.place_of(above)}: {dotted(above)}: wanted keys below it, found {values!r}")
        values = values.get(part)
    return values


def validated(
    model: type[S],
    values: Any,
    section: Key,
    tree: Tree,
    file: Path | None,
    *,
    masked: frozenset[str] = frozenset(),
) -> S:
    """The values as the model's object.

    `masked`: keys below which a wrong value is not repeated in the error: it may be a secret.

    Raises ConfigError with file, line and path of the first value that does not fit.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = (*section, *first["loc"])
        path, place = dotted(key), tree.place_of(key)
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        if first["type"] == "missing":
            where = "" if file is None else f" in {place if place.startswith(f'{file}:') else file}"
            hint = f"write it in {tree.name} or add --set {path}=..." if tree.takes_set else f"write it in {tree.name}"
            raise ConfigError(f"{path} is not set{where}{more}", hint=hint) from error
        # Without the cause where that would show what is masked.
        raise ConfigError(f"{place}: {path}: {_said(first, key, masked)}{more}") from (None if masked else error)


def refuse_unknown_keys(tree: Tree, model: type[BaseModel]) -> None:
    """Raises ConfigError for the first key that the model does not know, with the nearest that it does."""
    for key, valid in _unknown(tree.values, model, ()):
        raise ConfigError(f"{tree.place_of(key)}: unknown key {dotted(key)}", hint=_hint(key, valid))


def resolved(spec: BaseModel, section: Key, tree: Tree) -> Iterator[Resolved]:
    """Every value of a validated section, with its origin."""
    for key, value in _leaves(spec, section):
        yield Resolved(dotted(section) or str(key[0]), dotted(key), value, tree.origin_of(key))


def nearest(name: str, valid: tuple[str, ...]) -> str | None:
    """The valid name that a mistyped one most likely means."""
    near = difflib.get_close_matches(name, valid, n=1)
    return near[0] if near else None


def _said(error: ErrorDetails, key: Key, masked: frozenset[str]) -> str:
    if error["type"] == "value_error" and isinstance(error["input"], dict):
        # A sentence of ours on several values, which names those that it is about.
        return error["msg"].removeprefix("Value error, ")
    found = "a value that is not shown" if masked.intersection(map(str, key)) else repr(error["input"])
    return f"{error['msg']}, found {found}"


def _unknown(values: Any, model: type[BaseModel], above: Key) -> Iterator[tuple[Key, tuple[str, ...]]]:
    if not isinstance(values, dict):
        return
    for name, value in values.items():
        if name not in model.model_fields:
            yield (*above, name), tuple(model.model_fields)
            continue
        annotation = model.model_fields[name].annotation
        below, below_each = _model_in(annotation), _model_of_each(annotation)
        if below is not None:
            yield from _unknown(value, below, (*above, name))
        elif below_each is not None and isinstance(value, dict):
            for entry, inner in value.items():
                yield from _unknown(inner, below_each, (*above, name, entry))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is one, or one or None."""
    candidates = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
    return models[0] if models else None


def _model_of_each(annotation: Any) -> type[BaseModel] | None:
    """The model of the entries of a field that is a dict of them."""
    return _model_in(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def _hint(key: Key, valid: tuple[str, ...]) -> str:
    near = nearest(str(key[-1]), valid)
    return f"did you mean {dotted((*key[:-1], near))}?" if near else f"known there: {', '.join(valid)}"


def _leaves(spec: BaseModel, key: Key) -> Iterator[tuple[Key, Any]]:
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*key, name))
        elif isinstance(value, dict) and any(isinstance(entry, BaseModel) for entry in value.values()):
            for entry, inner in value.items():
                yield from _leaves(inner, (*key, name, entry))
        else:
            yield (*key, name), value
