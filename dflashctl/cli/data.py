"""dflashctl data: responses of the target, token shards, and what in them is trained on."""

from pathlib import Path
from typing import Annotated

import typer

from dflashctl.artifacts import DatasetRef
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
from dflashctl.defaults import DEFAULT_WORKDIR

app = typer.Typer(no_args_is_help=True, help="Make and look into training data.")

Target = Annotated[Path | None, typer.Option("--target", metavar="DIR", help="The target's folder.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out malformed rows and count them.")]


@app.command()
def generate(
    config: Config = None,
    set_: Set = None,
    target: Target = None,
    prompts: Annotated[Path | None, typer.Option("--prompts", metavar="FILE", help="JSONL of {id, messages}.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="JSONL that is written.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", help="An answer is cut there.")] = None,
    skip_bad: SkipBad = False,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Let the target answer prompts, greedily: a drafter learns from its target's own words."""
    from dflashctl.cli.run_job import job_folder, run_job
    from dflashctl.config.run import load_section
    from dflashctl.stages.data.plan import plan_generate
    from dflashctl_remote.spec.data import GenerateSpec

    overrides = overrides_of(
        set_,
        target=("data.generate.target", target),
        prompts=("data.generate.prompts", prompts),
        output=("data.generate.output", output),
        max_new_tokens=("data.generate.max_new_tokens", max_new_tokens),
        skip_bad=("data.generate.skip_bad", skip_bad),
    )
    spec = load_section("data.generate", GenerateSpec, config, overrides)
    transport = transport_of(host)
    plan = plan_generate(spec, job_folder(workdir, "generate"), site_of(transport))
    out = Output(is_json=json)
    ended = run_job(plan, transport, out, title="data generate", is_dry_run=dry_run)
    if ended is not None:
        out.result({"output": plan.writes[0], **ended.about}, f"wrote {plan.writes[0]}")


@app.command()
def tokenize(
    config: Config = None,
    set_: Set = None,
    target: Target = None,
    input_: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="JSONL of {id, messages, category?}.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Dataset folder that is written.")
    ] = None,
    max_length_tokens: Annotated[
        int | None, typer.Option("--max-length-tokens", help="Longer documents are cut there.")
    ] = None,
    skip_bad: SkipBad = False,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Turn conversations into token shards, marking what the assistant wrote."""
    from dflashctl.cli.run_job import job_folder, run_job
    from dflashctl.config.run import load_section
    from dflashctl.stages.data.plan import plan_tokenize
    from dflashctl.views.tables import dataset
    from dflashctl_remote.spec.data import TokenizeSpec

    overrides = overrides_of(
        set_,
        target=("data.tokenize.target", target),
        input=("data.tokenize.input", input_),
        output=("data.tokenize.output", output),
        max_length_tokens=("data.tokenize.max_length_tokens", max_length_tokens),
        skip_bad=("data.tokenize.skip_bad", skip_bad),
    )
    spec = load_section("data.tokenize", TokenizeSpec, config, overrides)
    transport = transport_of(host)
    plan = plan_tokenize(spec, job_folder(workdir, "tokenize"), site_of(transport))
    out = Output(is_json=json)
    if run_job(plan, transport, out, title="data tokenize", is_dry_run=dry_run) is not None:
        info = DatasetRef(plan.writes[0]).info()
        out.result({"dataset": plan.writes[0], **info.model_dump()}, dataset(info))


@app.command()
def inspect(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder written by `data tokenize`.")],
    target: Annotated[
        Path | None,
        typer.Option("--target", metavar="DIR", help="Whose tokenizer decodes; default: the dataset's own."),
    ] = None,
    document: Annotated[
        list[int] | None, typer.Option("--document", metavar="N", min=0, help="Show this one, from 0; repeatable.")
    ] = None,
    tokens_per_batch: Annotated[
        int | None, typer.Option("--tokens-per-batch", min=1, help="Also report how rows of this size pack.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of the packing.")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Keep the report there, as JSON.")
    ] = None,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    host: Host = "local",
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Show what is trained on and what is not, in the text itself."""
    from dflashctl.cli.run_job import job_folder, run_job
    from dflashctl.stages.data.apply import read_inspection
    from dflashctl.stages.data.plan import plan_inspect
    from dflashctl.views.mask import inspection
    from dflashctl_remote.spec.data import InspectSpec

    folder = job_folder(workdir, "inspect")
    spec = InspectSpec(
        dataset=str(dataset),
        target=str(target or DatasetRef(dataset).info().target),
        documents=tuple(document or (0,)),
        tokens_per_batch=tokens_per_batch,
        seed=seed,
        output=str(output or folder / "report.json"),
    )
    transport = transport_of(host)
    plan = plan_inspect(spec, folder, site_of(transport))
    out = Output(is_json=json)
    if run_job(plan, transport, out, title="data inspect", is_dry_run=dry_run) is not None:
        report = read_inspection(plan.writes[0])
        out.result(report, inspection(report))
