"""dflashctl kernels: are the kernels right on a machine, and how fast are they there."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from dflashctl.cli.options import DryRun, Host, Json, WorkdirOption, site_of, transport_of
from dflashctl.cli.output import Output
from dflashctl.defaults import DEFAULT_WORKDIR

app = typer.Typer(no_args_is_help=True, help="Check and time the kernels where they are to run.")


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Kernels = Annotated[list[str] | None, typer.Argument(metavar="[KERNEL]...", help="Only these; default: all.")]
OutputFile = Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Keep the report there, as JSON.")]


@app.command()
def test(
    kernel: Kernels = None,
    device: Annotated[
        Device, typer.Option("--device", help="cpu: Triton's interpreter; auto: the GPU if there is one.")
    ] = Device.AUTO,
    output: OutputFile = None,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Compare kernels with their references; without a GPU what the interpreter can run, saying what is left out.

    Exit code 7 if a check fails.
    """
    _run("test", kernel, device, output, workdir, host, is_dry_run=dry_run, is_json=json)


@app.command()
def bench(
    kernel: Kernels = None,
    output: OutputFile = None,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Time kernels at their real shapes beside other ways to do the same; needs a GPU. Checks come first."""
    _run("bench", kernel, Device.AUTO, output, workdir, host, is_dry_run=dry_run, is_json=json)


def _run(
    action: Literal["test", "bench"],
    kernels: list[str] | None,
    device: Device,
    output: Path | None,
    workdir: Path,
    host: str,
    *,
    is_dry_run: bool,
    is_json: bool,
) -> None:
    from dflashctl.cli.run_job import job_folder, run_job
    from dflashctl.stages.kernels.apply import problem_of, read_kernels_report
    from dflashctl.stages.kernels.plan import plan_kernels
    from dflashctl.views.kernels import kernels_report
    from dflashctl_remote.spec.kernels import KernelsSpec

    folder = job_folder(workdir, "kernels")
    spec = KernelsSpec(
        action=action,
        kernels=tuple(kernels or ()),
        device=device.value,
        output=str(output or folder / "report.json"),
    )
    transport = transport_of(host)
    plan = plan_kernels(spec, folder, site_of(transport))
    out = Output(is_json=is_json)
    if run_job(plan, transport, out, title=f"kernels {action}", is_dry_run=is_dry_run) is None:
        return
    report = read_kernels_report(plan.writes[0])
    out.result(report, kernels_report(report), str(plan.writes[0]))
    problem = problem_of(report, host)
    if problem is not None:
        raise problem
