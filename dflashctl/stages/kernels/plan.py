"""A check or a bench of the kernels as a plan. Pure."""

from pathlib import Path

from dflashctl.stages.jobs import JobPlan, Site, plan_job
from dflashctl_remote.spec.kernels import KernelsSpec


def plan_kernels(spec: KernelsSpec, folder: Path, site: Site) -> JobPlan:
    output = Path(spec.output).expanduser().absolute()
    absolute = spec.model_copy(update={"output": str(output)})
    return plan_job("kernels", absolute, folder, site, writes=(output,))
