"""dflashctl bench: speculative against plain decoding, on the same prompts, through the servers' own door."""

from pathlib import Path
from typing import Annotated

import typer

from dflashctl.cli.options import Config, DryRun, Json, Set, WorkdirOption, overrides_of
from dflashctl.cli.output import Output
from dflashctl.defaults import DEFAULT_WORKDIR

app = typer.Typer(invoke_without_command=True, help="Speculative against plain decoding, measured.")


@app.callback()
def bench(
    context: typer.Context,
    server: Annotated[
        str | None, typer.Option("--server", metavar="NAME", help="A server of `deploy up`, with its drafter.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="NAME",
            help="A server that decodes plainly; default: one like the server is started for the time.",
        ),
    ] = None,
    compare_with: Annotated[
        Path | None,
        typer.Option("--compare", metavar="FILE", help="An earlier run.json: exit 7 if worse beyond chance."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with an interrupted benchmark's folder.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Instead of a new folder; a benchmark begun there goes on."),
    ] = None,
    config: Config = None,
    set_: Set = None,
    prompts: Annotated[
        Path | None, typer.Option("--prompts", metavar="FILE", help="JSONL of {id, messages} or {id, prompt}.")
    ] = None,
    num_prompts: Annotated[int | None, typer.Option("--num-prompts", help="Only the first so many.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", help="An answer is cut there.")] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option("--concurrency", metavar="N", help="So many requests at any time; repeatable. Default: 1."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="PER_S", help="Open loop: requests arrive at random times at this rate."),
    ] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", metavar="N", help="Each prompt so often.")] = None,
    workdir: WorkdirOption = DEFAULT_WORKDIR,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Ask a server and its plain baseline the same prompts in turns; table, run.json, requests.jsonl, report.html."""
    if context.invoked_subcommand is not None:
        return
    from dflashctl.cli.run_bench import Case, refuse_bad_outcome, run_bench
    from dflashctl.config.bench import BenchSpec
    from dflashctl.config.run import load_section
    from dflashctl.stages.bench.compare import compare as compare_reports
    from dflashctl.stages.bench.summary import read_report
    from dflashctl.views.bench import comparison, outcome
    from dflashctl.views.bench import dry_run as dry_run_view

    overrides = overrides_of(
        set_,
        server=("bench.server", server),
        baseline=("bench.baseline", baseline),
        prompts=("bench.prompts", prompts),
        num_prompts=("bench.num_prompts", num_prompts),
        max_new_tokens=("bench.max_new_tokens", max_new_tokens),
        concurrency=("bench.concurrency", concurrency or None),
        rate=("bench.rate_per_s", rate),
        repeats=("bench.num_repeats", repeats),
    )
    spec = load_section("bench", BenchSpec, config, overrides)
    before = None if compare_with is None else read_report(compare_with)
    case = Case.of(spec, workdir.expanduser().absolute(), resume, output)
    out = Output(is_json=json)
    if dry_run:
        plan, launch = case.expected()
        out.result({"plan": plan, "baseline_launch": launch}, dry_run_view(plan, launch))
        return
    report, end = run_bench(case, out)
    result = None if before is None else compare_reports(before, report)
    out.result(report if result is None else result, outcome(report), *([] if result is None else [comparison(result)]))
    refuse_bad_outcome(report, end, result)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of `bench`, or its run.json.")],
    b: Annotated[Path, typer.Argument(metavar="B")],
    json: Json = False,
) -> None:
    """Two benchmarks side by side; exit 7 if B is worse than A by more than the intervals allow."""
    from dflashctl.cli.run_bench import refuse_regression
    from dflashctl.stages.bench.compare import compare as compare_reports
    from dflashctl.stages.bench.summary import read_report
    from dflashctl.views.bench import comparison

    result = compare_reports(read_report(a), read_report(b))
    Output(is_json=json).result(result, comparison(result))
    refuse_regression(result)
