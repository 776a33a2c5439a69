"""run.yaml: one section a stage. Files and `--set` become the frozen specs that hosts are sent."""

from pathlib import Path
from typing import TypeVar

from dflashctl.config.bench import BenchSpec
from dflashctl.config.load import Key, Override, load_tree, with_override
from dflashctl.config.schema import Resolved, refuse_unknown_keys, resolved, validated, values_at
from dflashctl.config.servers import ServerSpec
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
    refuse_unknown_keys(tree, RunFile)
    for fallback in fallbacks:
        if values_at(tree, tuple(fallback.path.split("."))) is None:
            tree = with_override(tree, fallback)
    key: Key = tuple(section.split("."))
    values = values_at(tree, key)
    return validated(spec_class, {} if values is None else values, key, tree, file)


def load_sections(file: Path, overrides: tuple[Override, ...] = ()) -> tuple[Resolved, ...]:
    """Every value of every section that the file or an override names, with its origin. Raises ConfigError."""
    tree = load_tree(file, overrides)
    refuse_unknown_keys(tree, RunFile)
    out: list[Resolved] = []
    for section, spec_class in SECTIONS.items():
        key: Key = tuple(section.split("."))
        values = values_at(tree, key)
        if values is not None:
            spec = validated(spec_class, values, key, tree, file)
            out.extend(resolved(spec, key, tree))
    return tuple(out)
