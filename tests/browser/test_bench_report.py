"""The report of a benchmark, looked at in the Chromium that is installed: what a person would see."""

import shutil
from pathlib import Path

import pytest

from dflashctl.stages.bench.report import BenchReport
from dflashctl.views.bench_html import html

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
ARGUMENTS = [*QUIET, "--disable-sync", "--no-first-run"]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to look at the report with")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report():
    return BenchReport.model_validate_json((Path(__file__).parent / "bench.json").read_bytes())


@pytest.fixture
def page_at(browser, report, tmp_path):
    """The open page at a width, and all that it asked for or complained of."""
    file = tmp_path / "report.html"
    file.write_text(html(report), encoding="utf-8")
    opened = []

    def open_page(width, scheme="light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(page)
        seen = {"complaints": [], "requests": []}
        page.on("console", lambda message: seen["complaints"].append(message.text))
        page.on("pageerror", lambda error: seen["complaints"].append(str(error)))
        page.on("request", lambda request: seen["requests"].append(request.url))
        page.goto(file.as_uri())
        return page, seen

    yield open_page
    for page in opened:
        page.close()


def test_nothing_is_fetched_and_nothing_complains(page_at):
    page, seen = page_at(1280)
    page.wait_for_load_state("networkidle")
    leaving = [url for url in seen["requests"] if not url.startswith(("file:", "data:"))]
    assert leaving == []
    assert seen["complaints"] == []


@pytest.mark.parametrize("width", [1280, 390])
def test_the_figures_of_run_json_can_be_seen(page_at, report, width):
    page, _ = page_at(width)
    text = " ".join(page.inner_text("body").split())
    speculative = report.rows[1]
    for figure in (
        f"{report.speedup:.2f}x",
        f"{report.tau:.2f}",
        f"{report.num_verify_steps:,} verify steps",
        f"{100 * report.acceptance_rate:.1f} %",
        f"{report.equality.num_equal} of {report.equality.num_compared}",
        f"{speculative.output_tokens_per_s:.1f}",
        f"{1000 * speculative.tpot_s.p50:.1f} / {1000 * speculative.tpot_s.p99:.1f}",
        f"{speculative.tokens_per_s_per_user:.1f}",
        report.verdict,
        report.categories[1].category,
        report.checks[2].text,
        report.servers["speculative"].drafter_sha256[:12],
    ):
        assert figure in text, figure


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_to_the_side(page_at, width):
    page, _ = page_at(width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.card')].filter(one => one.getBoundingClientRect().right > innerWidth + 1)"
    assert page.evaluate(f"{wider}.length") == 0


@pytest.mark.parametrize(("width", "least"), [(1280, 400), (390, 280)])
def test_every_plot_has_a_size_and_something_in_it(page_at, width, least):
    page, _ = page_at(width)
    plots = page.query_selector_all("svg.plot")
    assert len(plots) == 4
    for plot in plots:
        box = plot.bounding_box()
        assert box["width"] >= least and box["height"] >= least / 2
        marks = plot.query_selector_all(".bar, .dot, .line")
        assert any(mark.bounding_box()["height"] > 3 for mark in marks)


def test_the_whole_table_is_seen_on_a_desk_without_scrolling(page_at):
    page, _ = page_at(1280)
    assert page.evaluate("(one => one.scrollWidth <= one.clientWidth)(document.querySelector('#table .scroll'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page_at, scheme):
    """WCAG's 4.5 for text, on the cards and on the page."""
    page, _ = page_at(1280, scheme)
    pairs = page.evaluate(
        """() => ['.tile-about', '.verdict', 'td', 'th', 'figcaption', '.warning', '.tile-value.good'].map(name => {
            const one = document.querySelector(name)
            return [name, getComputedStyle(one).color, getComputedStyle(one.closest('.card')).backgroundColor]
        })"""
    )
    for name, ink, ground in pairs:
        assert contrast(ink, ground) >= 4.5, (name, ink, ground)


def test_every_prompt_can_be_unfolded(page_at, report):
    page, _ = page_at(1280)
    row = page.get_by_role("cell", name=report.prompts[0].prompt_id)
    assert not row.is_visible()
    page.click("#prompts summary")
    assert row.is_visible()


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    """Of "rgb(r, g, b)"; WCAG 2."""
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
