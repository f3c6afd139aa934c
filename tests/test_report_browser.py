"""The report in a real browser: Playwright on the Chromium of the system, where both are installed."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fuzz.report.again import write_again
from tests.report_runs import FINDING, Written, dump_of

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install playwright)")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path (apt-get install chromium)")

QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
# The contrast of the text of an element with the background behind it: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
CONTRAST = """
element => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.unshift(getComputedStyle(e).backgroundColor);
  const paint = colours => {
    canvas.fillStyle = "white";
    for (const colour of colours) { canvas.fillRect(0, 0, 1, 1); canvas.fillStyle = colour; }
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  };
  const luminance = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;
  const [back, front] = [paint(layers), paint([...layers, getComputedStyle(element).color])].map(luminance);
  return (Math.max(back, front) + 0.05) / (Math.min(back, front) + 0.05);
}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=[*QUIET, "--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    """A run with a failure, a picture of it, an error, and one run before it."""
    place = tmp_path_factory.mktemp("nights") / "out"
    before = Written(place / "earlier" / "20260101-000000", began="20260101-000000")
    before.judge({"output": 0.5}, FINDING | {"check": "fresh"})
    before.end(exit_status=1)
    run = Written(place)
    for ratio in (0.1, 0.4, 0.9):
        run.judge({"output": ratio, "lse": ratio / 30}, strata=("values:bell", "pages:reversed"))
    run.judge({"output": 0.5}, FINDING | {"detail": "a_word_that_is_very_long_" * 12})
    run.journal.write("error", usage=False, message="Traceback\nValueError: " + "x" * 300)
    run.end(exit_status=1)
    output = torch.zeros(7, 16, 512, dtype=torch.bfloat16)
    output[3, 5, 100:200] = 1
    exact = torch.zeros(7, 16, 512, dtype=torch.float64)
    expected = {"output": exact, "output_low": exact - 1e-3, "output_high": exact + 1e-3}
    save_file({"output": output}, dump_of(place, "output") / "observed.safetensors")
    save_file(expected, dump_of(place, "output") / "expected.safetensors")
    write_again(place)
    return place


@pytest.fixture(params=[("light", 1200), ("dark", 1200), ("light", 360)], ids=lambda value: "-".join(map(str, value)))
def page(request, browser, directory) -> Iterator[Any]:
    scheme, width = request.param
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    opened = context.new_page()
    opened.requested, opened.complaints = [], []
    opened.on("request", lambda one: opened.requested.append(one.url))
    opened.on("console", lambda one: opened.complaints.append(one.text))
    opened.goto((directory / "report.html").as_uri())
    yield opened
    context.close()


def test_nothing_is_loaded_and_nothing_is_amiss(page, directory):
    loaded = [url for url in page.requested if not url.startswith("data:")]
    assert loaded == [(directory / "report.html").as_uri()]
    assert page.complaints == []


def test_the_verdict_is_what_one_sees_first(page):
    headline = page.locator(".headline")
    assert "Failed: 1 failure in 4 cases" in headline.inner_text()
    box = headline.bounding_box()
    assert box["y"] + box["height"] < 400


def test_the_page_never_scrolls_sideways(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_all_text_has_contrast(page):
    texts = page.locator("h1, h2, h3, p, dt, dd strong, dd span, td, th, caption, figcaption, summary, code, .chip, a")
    assert texts.count() > 50
    assert texts.evaluate_all(f"all => Math.min(...all.map({CONTRAST}))") >= 4.5
    assert page.locator("svg .axis").first.evaluate(CONTRAST.replace("(element).color", "(element).fill")) >= 4.5


def test_pictures_and_charts_have_their_size_and_their_words(page):
    assert page.locator(".pictures img").count() == 3
    for i in range(3):
        image = page.locator(".pictures img").nth(i)
        assert image.evaluate("one => one.complete && one.naturalWidth > 0")
        assert image.bounding_box()["height"] > 60
        assert "100 of 57,344 elements" in image.get_attribute("alt")
    assert page.get_by_role("img", name="Histogram of output: 4 cases, 1 of them beyond the bound").is_visible()


def test_the_keyboard_opens_the_record_and_links_jump(page):
    page.locator(".failure summary").focus()
    page.keyboard.press("Enter")
    assert page.locator(".failure details pre").is_visible()
    page.get_by_role("link", name="Throughput").click()
    assert page.url.endswith("#pace")
    assert 0 <= page.locator("#pace h2").bounding_box()["y"] < 800


def test_the_replay_command_is_selected_whole_by_a_click(page, directory):
    page.locator(".failure .command code").click()
    selected = page.evaluate("getSelection().toString().trim()")
    assert selected == f"python -m fuzz replay {dump_of(directory, 'output')}"


def test_it_prints_in_black_on_white_whatever_the_scheme(page):
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert not page.get_by_role("navigation").is_visible()
    assert page.pdf(prefer_css_page_size=True, print_background=True).startswith(b"%PDF-")
