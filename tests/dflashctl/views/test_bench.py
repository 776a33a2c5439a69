import json
from pathlib import Path

import pytest

from dflashctl.stages.bench.compare import compare
from dflashctl.views.bench import comparison, outcome
from dflashctl.views.bench_cells import COLUMNS, cells, header
from dflashctl.views.bench_html import html
from dflashctl.views.bench_markdown import markdown


def squeezed(text):
    return " ".join(text.split())


@pytest.mark.parametrize("width", [200, 120, 80])
def test_no_figure_is_cut_at_any_usual_width(text_of, bench_report, width):
    text = text_of(outcome(bench_report()), width=width)
    assert "\u2026" not in text and "..." not in text
    for said in ("1.53", "[1.21, 1.92]", "speculative", "61.8", "[59.9, 63.4]", "102.0", "17.6"):
        assert said in text, said


def test_the_verdict_and_what_to_mind_stand_below_the_table(text_of, bench_report):
    text = squeezed(text_of(outcome(bench_report())))
    assert "Speculation is faster than plain decoding" in text
    assert "warning: nobody else used the servers: 4 verify steps between our turns" in text
    assert "tokens add up" not in text, "what is in order is no news"
    assert "/benchmarks/spec/report.html" in text


def test_an_invalid_benchmark_says_so_everywhere(text_of, bench_report):
    report = bench_report(is_valid=False, invalid_because=("tau is exactly 1",))
    assert "INVALID: tau is exactly 1" in text_of(outcome(report))
    assert "**INVALID**: tau is exactly 1" in markdown(report)
    assert "This benchmark proves nothing" in html(report)
    assert "This benchmark proves nothing" not in html(bench_report())


def test_what_was_not_measured_is_a_dash_and_no_zero(bench_report):
    report = bench_report()
    baseline = dict(zip((column.title for column in COLUMNS), cells(report.rows[0], report), strict=True))
    assert (baseline["tau"], baseline["accepted"], baseline["x plain"]) == ("-", "-", "-")


def test_the_row_of_one_at_a_time_shows_the_paired_speed_up_and_others_the_ratio(bench_report):
    report = bench_report()
    by_load = {row.load: cells(row, report) for row in report.rows if row.arm == "speculative"}
    assert "1.53 [1.21, 1.92]" in by_load["c=1"]
    assert "1.31" in by_load["c=4"]


def test_the_header_says_all_that_is_needed_to_do_it_again(bench_report):
    said = " ".join(f"{name}: {value}" for name, value in header(bench_report()))
    for part in ("mine@900", "sha256 dddddddddddd", "K = 7", "greedy", "seed 0", "sha256 aaaaaaaaaaaa", "torch 2.13.0"):
        assert part in said, part


def test_markdown_is_a_table_of_as_many_columns_as_it_has_titles(bench_report):
    lines = markdown(bench_report()).splitlines()
    assert [line.count("|") for line in lines[:6]] == [len(COLUMNS) + 1] * 6


def test_markdown_has_categories_where_there_are_any(bench_report):
    assert "| code | 2 | 1.90 | 3.10 |" in markdown(bench_report())


def test_a_comparison_shows_both_and_what_it_makes_of_them(text_of, bench_report):
    before, after = bench_report(), bench_report(tau=2.0, tau_ci={"low": 1.9, "high": 2.1})
    text = text_of(comparison(compare(before, after)))
    line = next(line for line in text.splitlines() if line.strip().startswith("tau"))
    assert "2.900" in line and "2.000" in line and line.rstrip().endswith("worse")


def test_html_asks_for_nothing_and_runs_nothing(bench_report):
    page = html(bench_report())
    assert "<script" not in page
    for word in ("http://", "https://", "@import", "url("):
        assert word not in page.replace("http://www.w3.org/2000/svg", ""), word


def test_html_holds_names_from_outside_as_text(bench_report):
    report = bench_report(drafter="<b>bold</b>")
    assert "<b>bold</b>" not in html(report)
    assert "&lt;b&gt;bold&lt;/b&gt;" in html(report)


def test_html_says_why_a_plot_is_not_there(bench_report):
    page = html(bench_report(positions=(), prompts=(), speedup=None, speedup_ci=None))
    assert "the engine counts no acceptance by position" in page
    assert "no prompt was decoded by both arms one at a time" in page


def test_a_report_survives_the_file_that_it_is_kept_in(bench_report, tmp_path):
    report = bench_report()
    path = Path(tmp_path / "run.json")
    path.write_text(report.model_dump_json())
    assert type(report).model_validate(json.loads(path.read_text())) == report
