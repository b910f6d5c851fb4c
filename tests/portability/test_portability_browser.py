"""The page in a real browser: headless Chromium of the system, opened from a file.

Skipped where Chromium, its driver or axe is missing; with CLROPE_TEST_BROWSER=1 that is a failure.
"""

import os
import re
import shutil

import pytest
from made_up_files import fleet, small, spoil, tuning, verification

from clrope.portability.page import write_page
from clrope.portability.report_files import read_files

REQUIRED = os.environ.get("CLROPE_TEST_BROWSER", "") not in ("", "0")
THEMES = ("light", "dark")


def missing(reason):
    if REQUIRED:
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def chromium():
    """A running browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing("no chromium; `apt-get install chromium` installs it")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("no playwright; `pip install 'clrope[browser]'` installs it")
    with sync_playwright() as driver:
        # As root Chromium runs without its sandbox only.
        sandbox = [] if hasattr(os, "geteuid") and os.geteuid() else ["--no-sandbox"]
        browser = driver.chromium.launch(executable_path=path, args=[*sandbox, "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, put, tmp_path):
    """Open the page of some files in a theme; at its end the page has written nothing to the console."""
    contexts, told = [], []

    def show(*files, theme="light", **options):
        found = read_files([put(f"{k}.json", data) for k, data in enumerate(files)])
        path = write_page(found, tmp_path / "page.html")
        context = chromium.new_context(color_scheme=theme, viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: told.append(f"exception: {error}"))
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        assert asked == [path.as_uri()]
        return page

    yield show
    for context in contexts:
        context.close()
    assert told == []


def all_kinds():
    workers = [{"worker": "w3", "host": "h", "device": "d", "platform": "p", "status": "missing", "reason": "killed"}]
    return small(), verification(), tuning(), fleet(results=[small() | {"worker": "w1"}], workers=workers)


def test_it_loads_without_a_word(opened):
    page = opened(*all_kinds())
    assert page.title() == "Portability report – RoPE by clrope"
    assert page.locator("svg.plot").count() == 9
    assert page.get_by_role("heading", level=1).inner_text() == "Portability report"
    loaded = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    size = page.evaluate("document.documentElement.outerHTML.length")
    print(f"loaded in {loaded:.0f} ms, {size / 1e3:.0f} kB")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_axe_finds_nothing_serious(opened, theme, kind):
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        missing("no axe; `pip install 'clrope[browser]'` installs it")
    files = all_kinds()
    page = opened(spoil(files[0]) if kind == "wrong" else files[0], *files[1:], theme=theme)
    found = Axe().run(page).response
    assert len(found["passes"]) > 15
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    assert serious == [], "\n".join(
        f"{v['impact']}: {v['id']}: {v['help']}: {node['html'][:200]} {node['failureSummary']}"
        for v in serious
        for node in v["nodes"][:3]
    )


def column(page, table, number):
    return page.locator(f"#table-{table} tbody tr:not([hidden]) td:nth-child({number})").all_inner_texts()


def test_tables_sort(opened):
    page = opened(small())
    head = page.locator("#table-bandwidth th", has_text="its GB/s").locator("button")
    other = page.locator("#table-bandwidth th", has_text="workload")
    speeds = page.locator("#table-bandwidth th").all_inner_texts()
    at = next(k for k, text in enumerate(speeds, 1) if text.startswith("p20-p80"))
    before = column(page, "bandwidth", at)
    head = page.locator("#table-bandwidth th", has_text="p20-p80 ms")
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    down = [float(text.split("-")[0]) for text in column(page, "bandwidth", at)]
    assert down == sorted(down, reverse=True)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    up = [float(text.split("-")[0]) for text in column(page, "bandwidth", at)]
    assert up == sorted(up)
    assert up != [float(text.split("-")[0]) for text in before]
    other.get_by_role("button").click()
    assert other.get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") is None
    names = column(page, "bandwidth", 1)
    assert len(names) == len(before)
    assert names == sorted(names, key=lambda name: [int(d) if d.isdigit() else d for d in re.split(r"(\d+)", name)])
    # What has no number comes last, whichever way.
    peers = page.locator("#table-bandwidth th", has_text="its GB/s")
    at = next(k for k, text in enumerate(speeds, 1) if text.startswith("its GB/s"))
    for _ in range(2):
        peers.get_by_role("button").click()
        assert column(page, "bandwidth", at)[-1] == "-" or "-" not in column(page, "bandwidth", at)


def test_tables_filter(opened):
    page = opened(small())
    table = page.locator("#table-bandwidth")
    total = len(column(page, "bandwidth", 1))
    table.get_by_label("Filter").fill("POCL prefill")
    shown = table.locator("tbody tr:not([hidden])")
    assert 0 < shown.count() < total
    assert all("prefill" in text and "pocl" in text for text in shown.all_inner_texts())
    assert table.get_by_role("status").inner_text() == f"{shown.count()} of {total} rows"
    table.get_by_label("Filter").fill("no such thing")
    assert shown.count() == 0
    table.get_by_label("Filter").fill("")
    assert shown.count() == total


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("theme", THEMES)
def test_the_theme_follows_the_system_until_it_is_chosen(opened, theme):
    page = opened(small(), theme=theme)
    other = THEMES[THEMES[0] == theme]
    first = background(page)
    page.emulate_media(color_scheme=other)
    second = background(page)
    assert first != second
    page.get_by_role("button", name=f"{theme.title()} theme").click()
    assert background(page) == first
    page.emulate_media(color_scheme=theme)
    assert background(page) == first
    page.get_by_role("button", name=f"{other.title()} theme").click()
    assert background(page) == second
    page.reload()
    assert background(page) == second
    # Paper is white.
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"


def test_marks_say_their_numbers_to_the_pointer_and_the_keyboard(opened):
    page = opened(small())
    tip = page.locator("#tip")
    assert tip.is_hidden()
    mark = page.locator("#figure-bandwidth svg.plot .bar .mark").first
    mark.scroll_into_view_if_needed()
    mark.hover()
    assert "GB/s" in tip.inner_text()
    assert "0.json › run 2026-01-01T00:00:00+00:00 › prefill/f16/" in tip.inner_text()
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    # One mark of each figure is reached by Tab, the others by the arrow keys.
    assert page.locator("#figure-latency .mark[tabindex='0']").count() == 1
    first = page.locator("#figure-latency svg.plot .mark[tabindex='0']")
    first.focus()
    said = [tip.inner_text()]
    page.keyboard.press("ArrowRight")
    said.append(tip.inner_text())
    page.keyboard.press("End")
    said.append(tip.inner_text())
    assert len(set(said)) == 3
    assert page.locator("#figure-latency .mark[tabindex='0']").count() == 1
    page.keyboard.press("Home")
    assert tip.inner_text() == said[0]
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    snapshot = page.locator("#figure-latency svg.plot").aria_snapshot()
    assert "decode-1/f32/neox/out/forward: 6 µs a call" in snapshot


def test_it_works_by_keyboard_alone(opened):
    page = opened(small())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.tagName"))
    assert {"A", "BUTTON", "INPUT", "DIV"} <= seen
    assert seen & {"path", "circle"}
    head = page.locator("#table-bandwidth th").first
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"


def test_it_fits_a_narrow_screen_and_paper(opened, tmp_path):
    page = opened(*all_kinds())
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.pdf(path=tmp_path / "page.pdf", prefer_css_page_size=True)
    assert (tmp_path / "page.pdf").read_bytes()[:5] == b"%PDF-"


def test_without_scripts_all_is_there(opened):
    page = opened(small(), java_script_enabled=False)
    assert page.locator("#table-bandwidth tbody tr").count() > 20
    assert page.locator("#theme").is_hidden()
    assert page.locator(".filter").first.is_hidden()
    assert "GB/s" in page.locator("#figure-bandwidth .bar .mark title").first.text_content()
