"""The viewer and the report in a real browser: what is painted, and that nothing leaves it."""

from __future__ import annotations

import json
import os
import shutil
import socket
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
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait
from switchsd.analysis.report import write_report
from switchsd.runs import Run

pytestmark = pytest.mark.browser

VIEWER = Path(__file__).parents[1] / "apps" / "viewer.py"
HOSTILE = ("<b>bold</b>", "$x$", "_a_", "\t", "\n", "</span><script>window.hit=1</script>", " b")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-first-run", "--window-size=1280,1000"),
)


@pytest.fixture
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


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path / "runs", texts=HOSTILE, n_tokens=40)


@pytest.fixture
def address(run: Run, tmp_path: Path) -> Iterator[str]:
    """A real server on a free port, started from another folder than the project's."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", str(VIEWER), "--server.headless=true"]
    command += [f"--server.port={port}", "--server.address=127.0.0.1"]
    log = tmp_path / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [*command, "--", "--runs", str(run.path.parent)],
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until(lambda: _answers(f"{url}/_stcore/health"), lambda: log.read_text())
        yield url
    finally:
        server.terminate()
        server.wait(timeout=20)


def test_tokens_and_histogram_are_painted_and_nothing_leaves(
    browser: WebDriver, address: str, run: Run
) -> None:
    browser.get(f"{address}/?prompt=HumanEval/1")
    _appears(browser, ".sw-text .t")
    _appears(browser, ".js-plotly-plot .bars path")
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
    browser.get(address)
    _appears(browser, ".sw-text .t.copy")
    _appears(browser, ".js-plotly-plot .bars path")  # from here on the page moves no more
    redrawn = (StaleElementReferenceException,)
    shown = WebDriverWait(browser, 10, ignored_exceptions=redrawn).until(_hover_text)
    for words in ("score", "step", "accepted", "match length", "copied from"):
        assert words in shown


def test_the_report_draws_its_figures_without_a_network(browser: WebDriver, run: Run) -> None:
    path = write_report(run)
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


def _appears(browser: WebDriver, css: str) -> None:
    WebDriverWait(browser, 30).until(
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
