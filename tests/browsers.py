"""Chromium through Selenium, for tests that open a page; skipped where there is none."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager

import pytest

pytest.importorskip("selenium", reason="needs selenium, a development dependency")

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--window-size=1200,1000",
)


@contextmanager
def chromium(profile):
    """A browser that keeps its console messages and requests."""
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for path in map(shutil.which, names) if path), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with chromedriver is installed: the page was not opened in a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def use_scheme(browser, scheme):
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},  # no smooth scrolling: clicks land where they aim
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@contextmanager
def on_a_phone(page):
    """The page as a phone shows it, without sideways scrolling."""
    size = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        wait(page, lambda: page.execute_script("return document.documentElement.clientWidth") == 390)
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def unnamed_controls(page):
    """What a screen reader finds no name for."""
    return page.execute_script(
        "return [...document.querySelectorAll('button, select, input, canvas, img, svg[role=img]')].filter(e =>"
        "!(e.getAttribute('aria-label') || e.getAttribute('alt') || e.textContent.trim() || e.closest('label')))"
        ".map(e => e.outerHTML)"
    )


def wait(browser, condition, seconds=20):
    WebDriverWait(browser, seconds, poll_frequency=0.02).until(lambda _: condition())


def requested(browser):
    """Addresses that the pages have asked for since the last look."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
