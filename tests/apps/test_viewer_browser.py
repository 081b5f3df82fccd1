"""The viewer and the report in a real browser: what is painted, and that nothing leaves it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from demo_run import make_run
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait
from switchsd.analysis.pages.demo_report import write_report
from switchsd.runs import Run
from viewer_runs import make_trace

pytestmark = [pytest.mark.browser, pytest.mark.timed]

VIEWER = Path(__file__).parents[2] / "apps" / "viewer.py"
FACE = Path(__file__).parents[2] / "runs" / "face"
BUSY = 4
"""A shared machine may be this much slower than an idle one; the figure itself is written down."""
HOSTILE = ("<b>bold</b>", "$x$", "_a_", "\t", "\n", "</span><script>window.hit=1</script>", " b")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--window-size=1280,1000"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[WebDriver]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        assert not os.environ.get("CI"), "CI must have chromium and chromedriver"
        pytest.skip("chromium or chromedriver is not installed (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        opened = webdriver.Chrome(options, Service(driver))
        try:
            yield opened
        finally:
            opened.quit()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A demo's run with hostile texts, beside it one of 8,000 tokens with its trace."""
    folder = tmp_path_factory.mktemp("viewer") / "runs"
    long = make_run(folder, "long", n_tokens=7_972, prompts=1, policies=("switchsd",))
    make_trace(folder, long, prompts=1)
    return make_run(folder, texts=HOSTILE, n_tokens=40)


@pytest.fixture(scope="module")
def server(run: Run, browser: WebDriver) -> Iterator[tuple[str, float]]:
    """A real server on a free port, started from another folder than the project's, and the
    seconds from its start until its first page stood in the browser."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", str(VIEWER), "--server.headless=true"]
    command += [f"--server.port={port}", "--server.address=127.0.0.1"]
    log = run.path.parent.parent / "server.log"
    begin = time.perf_counter()
    with log.open("w") as out:
        server = subprocess.Popen(
            [*command, "--", "--runs", str(run.path.parent)],
            cwd=log.parent,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until(lambda: _answers(f"{url}/_stcore/health"), lambda: log.read_text())
        browser.get(f"{url}/?run=demo")
        _appears(browser, ".sw-text .t")
        _appears(browser, ".sw-chart .hit")
        yield url, time.perf_counter() - begin
    finally:
        server.terminate()
        server.wait(timeout=20)


@pytest.fixture
def address(server: tuple[str, float]) -> str:
    return server[0]


def test_the_first_page_stands_soon_after_the_start(server: tuple[str, float]) -> None:
    _measured(viewer_start_seconds=round(server[1], 2))
    assert server[1] < 4 * BUSY


def test_tokens_and_histogram_are_painted_and_nothing_leaves(
    browser: WebDriver, address: str, run: Run
) -> None:
    browser.get(f"{address}/?run=demo&prompt=HumanEval/1")
    _appears(browser, ".sw-text .t")
    tokens = run.table("tokens").query("policy == 'switchsd' and prompt_id == 'HumanEval/1'")
    painted = browser.find_elements(By.CSS_SELECTOR, ".sw-text .t")
    assert len(painted) == len(tokens)
    expected = [_marked(text) for text in tokens.sort_values("position")["text"]]
    assert [element.get_property("textContent") for element in painted] == expected
    assert browser.execute_script("return window.hit") is None
    assert not browser.find_elements(By.CSS_SELECTOR, ".sw-text b, .sw-text script")

    copied = browser.find_element(By.CSS_SELECTOR, ".sw-text .t.copy")
    assert "underline" in copied.value_of_css_property("text-decoration-line")
    assert copied.value_of_css_property("background-color") != "rgba(0, 0, 0, 0)"
    lines = {element.rect["y"] for element in painted}
    assert len(lines) >= int((tokens["text"] == "\n").sum()), "a newline must still break the line"
    _nothing_leaves(browser, address)


def test_hovering_a_token_shows_its_score_and_source(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?run=demo")
    _appears(browser, ".sw-text .t.copy")
    _appears(browser, ".sw-chart .hit")
    redrawn = (StaleElementReferenceException,)
    shown = WebDriverWait(browser, 10, ignored_exceptions=redrawn).until(_hover_text)
    for words in ("score", "step", "accepted", "match length", "copied from"):
        assert words in shown


def test_choosing_a_token_moves_everything_and_lengths_filter(
    browser: WebDriver, address: str
) -> None:
    browser.get(f"{address}/?run=long")
    _appears(browser, ".sw-text .t.copy")
    browser.find_element(By.CSS_SELECTOR, ".sw-text .t.copy").click()
    for css in (".t.chosen", ".t.from", ".sw-steps tr.now", ".sw-heat td.now"):
        _appears(browser, css)
    assert "copied from" in browser.find_element(By.CSS_SELECTOR, ".sw-hint").text
    chosen = browser.find_element(By.CSS_SELECTOR, ".t.chosen").get_attribute("data-go")
    _wait_until(lambda: f"token={str(chosen)[6:]}" in browser.current_url)
    browser.find_element(By.CSS_SELECTOR, ".sw-text").send_keys(Keys.ARROW_RIGHT)
    following = f"[data-go='token:{int(str(chosen)[6:]) + 1}'].t.chosen"
    _appears(browser, following)
    assert not browser.find_elements(By.CSS_SELECTOR, ".t.dim")
    browser.find_element(By.CSS_SELECTOR, "[data-go='length:0']").click()
    _appears(browser, ".t.dim")
    assert browser.find_elements(By.CSS_SELECTOR, "[data-go='length:0'].on")


def test_moving_tau_marks_the_text_anew_within_the_time(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?run=long")
    _appears(browser, ".sw-tau:not([hidden]) input")
    slider = browser.find_element(By.CSS_SELECTOR, ".sw-tau input")
    slider.send_keys(Keys.ARROW_RIGHT)  # as a hand would
    _appears(browser, "[data-part=predicted] table", seconds=90)  # torch is imported here
    assert (
        "speed over vanilla" in browser.find_element(By.CSS_SELECTOR, "[data-part=predicted]").text
    )
    _wait_until(lambda: "tau=0.42" in browser.current_url)
    script = """
      const [value, done] = arguments, slider = document.querySelector(".sw-tau input");
      const panel = slider.closest(".sw-panel"), begin = performance.now();
      new MutationObserver((_, seen) => {
        if (Number(panel.dataset.tau) !== value) return;
        seen.disconnect();
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - begin)));
      }).observe(panel, { attributes: true });
      slider.value = value;
      slider.dispatchEvent(new Event("input", { bubbles: true }));
    """
    browser.set_script_timeout(60)
    taken, marks = [], []
    for value in (0.2, 0.9, 0.3, 0.8, 0.25, 0.85, 0.35):
        taken.append(float(browser.execute_async_script(script, value)))
        marks.append(len(browser.find_elements(By.CSS_SELECTOR, ".sw-text .t.wants")))
    _measured(slider_ms_8000_tokens=round(statistics.median(taken), 1))
    assert marks[0] > marks[1], "a higher threshold must want fewer copies"
    assert len(browser.find_elements(By.CSS_SELECTOR, ".sw-text .t")) == 600
    assert statistics.median(taken) < 300 * BUSY


def test_every_page_opens(browser: WebDriver, address: str) -> None:
    browser.get(f"{address}/?run=demo")
    signs = {
        "Acceptance": ".js-plotly-plot .bars path",
        "Probe lab": ".js-plotly-plot .heatmaplayer .hm",
        "Explain": "[data-testid=stCode]",  # how to make such a run
        "Bench": ".js-plotly-plot .bars path",
        "Decode": ".sw-text .t",
    }
    for name, css in signs.items():
        _appears(browser, "[data-testid=stRadio] label")
        label = next(
            each for each in browser.find_elements(By.CSS_SELECTOR, "[data-testid=stRadio] label")
            if each.text.startswith(name)
        )  # fmt: skip
        label.click()
        _wait_until(lambda n=name: f"page={n.replace(' ', '+')}" in browser.current_url)  # type: ignore[misc]
        _appears(browser, css)
        assert not browser.find_elements(By.CSS_SELECTOR, "[data-testid=stException]")
    _measured(pages_opened=len(signs))
    _nothing_leaves(browser, address)


@pytest.mark.model
def test_the_default_model_decodes_before_the_readers_eyes(
    browser: WebDriver, address: str
) -> None:
    browser.get(f"{address}/?mode=live&policy=switchsd&tokens=32")
    _appears(browser, "textarea")
    press = (
        "const found = [...document.querySelectorAll('button:not([disabled])')]"
        ".find(each => each.innerText.trim() === 'Decode'); found?.click(); return !!found"
    )
    _wait_until(lambda: bool(browser.execute_script(press)))
    _appears(browser, ".sw-text .t:not(.prompt)", seconds=120)
    count = "return document.querySelectorAll('.sw-text .t:not(.prompt)').length"
    seen = [int(browser.execute_script(count))]

    def ended() -> bool:
        seen.append(int(browser.execute_script(count)))
        return "ended by" in browser.find_element(By.CSS_SELECTOR, "[data-testid=stProgress]").text

    _wait_until(ended, seconds=120)
    assert len(set(seen)) > 2, "the tokens came all at once"
    assert sorted(seen) == seen
    assert "def " in browser.find_element(By.CSS_SELECTOR, ".sw-text").text
    _wait_until(lambda: int(browser.execute_script(count)) == 32)
    _nothing_leaves(browser, address)


def test_the_report_draws_its_figures_without_a_network(browser: WebDriver, run: Run) -> None:
    path = write_report(run)
    browser.get("about:blank")  # the viewer's own page is left,
    browser.get_log("performance")  # and what it asked for
    browser.get(path.as_uri())
    _wait_until(lambda: len(browser.find_elements(By.CSS_SELECTOR, ".main-svg .subplot")) >= 6)
    assert browser.execute_script("return window.hit") is None
    _nothing_leaves(browser, path.parent.as_uri())
    browser.get((path.parent / "figures" / "roc.html").as_uri())
    _appears(browser, ".main-svg .subplot")
    _nothing_leaves(browser, path.parent.as_uri())


def _hover_text(browser: WebDriver) -> str | None:
    """What the page shows while the pointer is on a copied token; None until it shows something."""
    found = browser.find_elements(By.CSS_SELECTOR, ".sw-text .t.copy")
    copied = next(token for token in found if token.text == "<b>bold</b>")
    pointer = webdriver.ActionChains(browser)
    pointer.move_by_offset(1, 1).move_to_element(copied).perform()
    script = "return getComputedStyle(arguments[0], '::after').content"
    shown = str(browser.execute_script(script, copied))
    return None if shown == "none" else shown


def _marked(text: str) -> str:
    return text.replace("\t", "⇥\t").replace("\n", "↵\n")


def _measured(**keys: object) -> None:
    """Into the machine-readable figures; what others wrote there stays."""
    Run(FACE).update_metrics(**keys)


def _appears(browser: WebDriver, css: str, seconds: float = 40) -> None:
    WebDriverWait(browser, seconds, 0.05).until(
        lambda page: page.find_elements(By.CSS_SELECTOR, css), f"{css} was not painted"
    )


def _nothing_leaves(browser: WebDriver, home: str) -> None:
    """Fail if the page asked for anything outside `home`, by any protocol that goes out."""
    asked = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
        elif message["method"] == "Network.webSocketCreated":
            asked.append(message["params"]["url"].replace("ws://", "http://"))
    assert any(url.startswith(home) for url in asked), "the log holds no request at all"
    away = [url for url in asked if not url.startswith(home)]
    assert not [url for url in away if urlsplit(url).scheme in ("http", "https", "ws", "wss")]


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=1) as reply:
            return reply.status == 200
    except (URLError, ConnectionError, TimeoutError):
        return False


def _wait_until(
    happened: Callable[[], bool], explain: Callable[[], str] = str, seconds: float = 30
) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, f"waited {seconds} s in vain. {explain()}"
        time.sleep(0.1)
