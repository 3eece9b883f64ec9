"""All models of a report side by side, in headless Chromium."""

from dataclasses import replace

import numpy as np
import pytest
from report_samples import make_run

from factformer.report.html import write_report
from factformer.report.style import difference_map, diverging_map

pytest.importorskip("selenium", reason="needs selenium, a development dependency")

from player_pages import canvas, data, expected, text
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from tests.browsers import wait


@pytest.fixture(scope="module")
def runs():
    options = {"shape": (16, 12), "num_frames": 4, "num_samples": 2}
    return [make_run(name, lag=lag, **options) for name, lag in (("a", 0.1), ("b", 0.2), ("c", 0.4))]


def shown(browser):
    """The pictures that can be seen, by the names of their canvases."""
    canvases = browser.find_elements(By.CSS_SELECTOR, ".screens canvas[id^=canvas]")
    return [one.get_attribute("id").removeprefix("canvas-") for one in canvases if one.is_displayed()]


def choose(browser, name, value):
    Select(browser.find_element(By.ID, f"choose-{name}")).select_by_value(str(value))


def middle_of_points(browser, name, width):
    drawn = canvas(browser, name)
    factor = drawn.shape[1] // width
    return drawn[factor // 2 :: factor, factor // 2 :: factor]


def test_all_models_are_shown_beside_the_truth(browser, runs, tmp_path):
    browser.get(write_report(tmp_path, title="three", runs=runs, compared=True).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    assert shown(browser) == ["truth", "model-0", "model-1", "model-2"]
    page = data(browser)["player"]
    limits, apart = page["fields"][0]["limits"], page["fields"][0]["difference_limits"]
    browser.execute_script("player.show(2)")
    for index, run in enumerate(runs):
        rollout = run.rollouts[0]
        wanted = expected(rollout.prediction[2, ..., 0], limits, diverging_map())
        assert np.abs(middle_of_points(browser, f"model-{index}", 16) - wanted).mean() < 3
        caption = browser.find_elements(By.CSS_SELECTOR, ".screens figure:not([hidden]) figcaption")[index + 1].text
        assert caption == f"{page['runs'][index]} {page['errors'][index][0]['vorticity'][2]:.4f}"
    choose(browser, "view", 2)
    wait(browser, lambda: browser.find_element(By.ID, "bar-difference").is_displayed())
    difference = runs[1].rollouts[0].prediction[2, ..., 0] - runs[1].rollouts[0].truth[2, ..., 0]
    wanted = expected(difference, apart, difference_map())
    assert np.abs(middle_of_points(browser, "model-1", 16) - wanted).mean() < 4
    choose(browser, "sample", 1)
    error = f"{page['errors'][2][1]['vorticity'][2]:.4f}"
    wait(browser, lambda: error in browser.find_element(By.CLASS_NAME, "screens").text)
    choose(browser, "view", 0)
    wait(browser, lambda: shown(browser) == ["truth", "prediction", "difference"])
    assert browser.find_element(By.ID, "choose-run").is_displayed()
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_lines_of_all_models_are_drawn(browser, tmp_path):
    runs = [make_run(name, lag=lag, shape=(24,), num_frames=2, num_samples=1) for name, lag in (("a", 0.1), ("b", 0.3))]
    browser.get(write_report(tmp_path, title="lines", runs=runs, compared=True).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    assert shown(browser) == ["truth", "model-0", "model-1"]
    assert all(canvas(browser, name).max() > 0 for name in shown(browser))


def test_models_of_other_windows_are_not_compared(browser, runs, tmp_path):
    other = replace(runs[1], rollouts=[replace(one, truth=one.truth + 1) for one in runs[1].rollouts])
    browser.get(write_report(tmp_path, title="other", runs=[runs[0], other], compared=True).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    assert shown(browser) == ["truth", "prediction", "difference"]
    assert not browser.find_element(By.ID, "choose-view").is_displayed()
