"""dflashctl eval: acceptance as it is, by free-running decode."""

from pathlib import Path
from typing import Annotated

import typer

from dflashctl.artifacts import CheckpointRef, Workdir
from dflashctl.cli.options import (
    Config,
    DryRun,
    Host,
    Json,
    Set,
    WorkdirOption,
    overrides_of,
    site_of,
    transport_of,
)
from dflashctl.cli.output import Output
from dflashctl.config.load import Override
from dflashctl.defaults import DEFAULT_WORKDIR

app = typer.Typer(no_args_is_help=True, help="Measure acceptance (tau).")


@app.command()
def run(
    config: Config = None,
    set_: Set = None,
    target: Annotated[Path | None, typer.Option("--target", metavar="DIR", help="The target's folder.")] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="RUN[@STEP|@best|@latest]", help="Of a run in --workdir, or a folder."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="The folder is of a public drafter, which has no manifest.")
    ] = False,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="JSONL of {id, messages}, held out.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Default: under --workdir, named by checkpoint and settings."),
    ] = None,
    num_prompts: Annotated[int | None, typer.Option("--num-prompts", help="Only the first so many.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", help="An answer is cut there.")] = None,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Decode held-out prompts with a drafter and count what the target accepts."""
    from dflashctl.cli.run_job import job_folder, run_job
    from dflashctl.config.run import load_section
    from dflashctl.stages.evaluate.apply import read_report
    from dflashctl.stages.evaluate.plan import default_output, plan_evaluate
    from dflashctl.views.evaluation import acceptance, acceptance_by_slot
    from dflashctl_remote.spec.evaluate import EvalSpec

    root = Workdir(workdir.expanduser().absolute())
    overrides = overrides_of(
        set_,
        target=("evaluate.target", target),
        checkpoint=("evaluate.checkpoint", checkpoint),
        public=("evaluate.is_public", public),
        prompts=("evaluate.prompts", prompts),
        output=("evaluate.output", output),
        num_prompts=("evaluate.num_prompts", num_prompts),
        max_new_tokens=("evaluate.max_new_tokens", max_new_tokens),
    )
    unset = Override("evaluate.output", "", "default")
    spec = load_section("evaluate", EvalSpec, config, overrides, fallbacks=(unset,))
    ref = root.checkpoint(spec.checkpoint)
    if ref.run_id is not None or not spec.is_public:
        _require_manifest(ref)
    spec = spec.model_copy(update={"checkpoint": str(ref.folder)})
    if not spec.output:
        spec = spec.model_copy(update={"output": str(default_output(spec, ref.label, root.evaluations))})
    transport = transport_of(host)
    plan = plan_evaluate(spec, job_folder(workdir, "evaluate"), site_of(transport))
    out = Output(is_json=json)
    if ref.why:
        out.say(f"{ref.label}: {ref.why}")
    if run_job(plan, transport, out, title="eval run", is_dry_run=dry_run) is not None:
        report = read_report(plan.writes[0])
        named = ((f"drafter {ref.label}", report),)
        out.result(report, acceptance(named), acceptance_by_slot(report), str(plan.writes[0]))


def _require_manifest(ref: CheckpointRef) -> None:
    """Raises ArtifactError."""
    from dflashctl.errors import ArtifactError

    try:
        ref.manifest()
    except ArtifactError as error:
        if ref.run_id is None and (ref.folder / "config.json").is_file():
            raise ArtifactError(error.message, hint="a public drafter has none: --public") from error
        raise


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of `eval run`, or its report.json.")],
    b: Annotated[Path, typer.Argument(metavar="B")],
    fail_if_worse: Annotated[
        float | None,
        typer.Option(
            "--fail-if-worse",
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="Exit 7 if tau without repeats of B is lower than A's by more than this share, e.g. 0.02.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Two measurements side by side."""
    from dflashctl.errors import Regression
    from dflashctl.stages.evaluate.apply import read_report
    from dflashctl.stages.evaluate.plan import compare as compare_reports
    from dflashctl.views.evaluation import comparison

    result = compare_reports(read_report(a), read_report(b))
    Output(is_json=json).result(result, comparison(result))
    if fail_if_worse is not None and result.headline.change < -fail_if_worse:
        raise Regression(f"tau without repeats fell by {-result.headline.change:.1%}, more than {fail_if_worse:.1%}")
