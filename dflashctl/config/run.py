"""run.yaml: one section a stage. Files and `--set` become the frozen specs that hosts are sent."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from dflashctl.config.bench import BenchSpec
from dflashctl.config.load import Key, Override, Tree, load_tree, with_override
from dflashctl.config.servers import ServerSpec
from dflashctl.errors import ConfigError
from dflashctl_remote.spec.base import Spec
from dflashctl_remote.spec.data import GenerateSpec, TokenizeSpec
from dflashctl_remote.spec.evaluate import EvalSpec
from dflashctl_remote.spec.train import TrainSpec

S = TypeVar("S", bound=Spec)


class DataSection(Spec):
    generate: GenerateSpec | None = None
    tokenize: TokenizeSpec | None = None


class RunFile(Spec):
    """A section that is left out cannot be run; the others stand alone."""

    data: DataSection = DataSection()
    train: TrainSpec | None = None
    evaluate: EvalSpec | None = None
    deploy: ServerSpec | None = None
    bench: BenchSpec | None = None


SECTIONS: dict[str, type[Spec]] = {
    "data.generate": GenerateSpec,
    "data.tokenize": TokenizeSpec,
    "train": TrainSpec,
    "evaluate": EvalSpec,
    "deploy": ServerSpec,
    "bench": BenchSpec,
}


@dataclass(frozen=True)
class Resolved:
    """One value of a section as it will be used."""

    section: str
    path: str
    value: Any
    origin: str


def load_section(
    section: str,
    spec_class: type[S],
    file: Path | None,
    overrides: tuple[Override, ...] = (),
    *,
    fallbacks: tuple[Override, ...] = (),
) -> S:
    """One section of run.yaml, resolved: defaults < file < overrides. The other sections need not be complete.

    `fallbacks` stand for keys that neither file nor overrides name: defaults that depend on the invocation.

    Raises ConfigError with file, line, key and the nearest valid key.
    """
    tree = load_tree(file, overrides)
    _refuse_unknown_keys(tree)
    for fallback in fallbacks:
        if _values_at(tree, tuple(fallback.path.split("."))) is None:
            tree = with_override(tree, fallback)
    key: Key = tuple(section.split("."))
    values = _values_at(tree, key)
    return _validate(spec_class, {} if values is None else values, key, tree, file)


def load_sections(file: Path, overrides: tuple[Override, ...] = ()) -> tuple[Resolved, ...]:
    """Every value of every section that the file or an override names, with its origin. Raises ConfigError."""
    tree = load_tree(file, overrides)
    _refuse_unknown_keys(tree)
    out: list[Resolved] = []
    for section, spec_class in SECTIONS.items():
        key: Key = tuple(section.split("."))
        values = _values_at(tree, key)
        if values is not None:
            spec = _validate(spec_class, values, key, tree, file)
            out.extend(
                Resolved(section, ".".join(map(str, path)), value, tree.origin_of(path))
                for path, value in _leaves(spec, key)
            )
    return tuple(out)


def _values_at(tree: Tree, key: Key) -> Any:
    """What stands at the key; None if nothing does. Raises ConfigError where a section holds a bare value."""
    values: Any = tree.values
    for depth, part in enumerate(key):
        if values is None:
            return None
        if not isinstance(values, dict):
            above = ".".join(map(str, key[:depth]))
            raise ConfigError(f"{tree.place_of(key[:depth])}: {above}: wanted keys below it, found {values!r}")
        values = values.get(part)
    return values


def _validate(spec_class: type[S], values: Any, section: Key, tree: Tree, file: Path | None) -> S:
    try:
        return spec_class.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = (*section, *first["loc"])
        path = ".".join(str(part) for part in key)
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        if first["type"] == "missing":
            where = f" in {file}" if file is not None else ""
            raise ConfigError(
                f"{path} is not set{where}{more}", hint=f"write it in run.yaml or add --set {path}=..."
            ) from error
        raise ConfigError(f"{tree.place_of(key)}: {path}: {first['msg']}, found {first['input']!r}{more}") from error


def _refuse_unknown_keys(tree: Tree) -> None:
    for key, valid in _unknown(tree.values, RunFile, ()):
        path = ".".join(str(part) for part in key)
        raise ConfigError(f"{tree.place_of(key)}: unknown key {path}", hint=_nearest(key, valid))


def _unknown(values: Any, model: type[BaseModel], above: Key) -> Iterator[tuple[Key, tuple[str, ...]]]:
    if not isinstance(values, dict):
        return
    for name, value in values.items():
        if name not in model.model_fields:
            yield (*above, name), tuple(model.model_fields)
            continue
        below = _model_in(model.model_fields[name].annotation)
        if below is not None:
            yield from _unknown(value, below, (*above, name))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field that is one, or one or None."""
    candidates = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
    return models[0] if models else None


def _nearest(key: Key, valid: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(str(key[-1]), valid, n=1)
    if near:
        return f"did you mean {'.'.join(str(p) for p in (*key[:-1], near[0]))}?"
    return f"known there: {', '.join(valid)}"


def _leaves(spec: BaseModel, key: Key) -> Iterator[tuple[Key, Any]]:
    for name in type(spec).model_fields:
        value = getattr(spec, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*key, name))
        else:
            yield (*key, name), value
