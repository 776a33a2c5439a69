"""The data jobs as plans: generate, tokenize, inspect. Pure."""

from pathlib import Path

from dflashctl.stages.jobs import JobPlan, Site, plan_job
from dflashctl_remote.spec.data import GenerateSpec, InspectSpec, TokenizeSpec


def plan_generate(spec: GenerateSpec, folder: Path, site: Site) -> JobPlan:
    absolute = spec.model_copy(
        update={
            "target": _absolute(spec.target),
            "prompts": _absolute(spec.prompts),
            "output": _absolute(spec.output),
        }
    )
    return plan_job("generate", absolute, folder, site, writes=(Path(absolute.output),))


def plan_tokenize(spec: TokenizeSpec, folder: Path, site: Site) -> JobPlan:
    absolute = spec.model_copy(
        update={
            "target": _absolute(spec.target),
            "input": _absolute(spec.input),
            "output": _absolute(spec.output),
        }
    )
    return plan_job("tokenize", absolute, folder, site, writes=(Path(absolute.output),))


def plan_inspect(spec: InspectSpec, folder: Path, site: Site) -> JobPlan:
    absolute = spec.model_copy(
        update={
            "dataset": _absolute(spec.dataset),
            "target": _absolute(spec.target),
            "output": _absolute(spec.output),
        }
    )
    return plan_job("inspect", absolute, folder, site, writes=(Path(absolute.output),))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())
