"""The report in a real browser, opened from disk: Chromium through Selenium, skipped where there is none."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from report_samples import make_run, make_steady_run

from factformer.grid import Grid
from factformer.problem import Field
from factformer.report.html import write_report
from factformer.report.style import difference_map, diverging_map, sequential_map

pytest.importorskip("selenium", reason="needs selenium, a development dependency")

from player_pages import canvas, choose, data, expected, frame, pixels, text
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from tests.browsers import on_a_phone, unnamed_controls, use_scheme, wait

FIELDS = (Field("pressure"), Field("velocity", 3))


@pytest.fixture(scope="module")
def runs():
    options = {"shape": (16, 12, 10), "num_frames": 6, "num_samples": 2, "fields": FIELDS}
    return [make_run(**options), make_run("ffno", lag=0.2, protocol="autoregressive", **options)]


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    return write_report(tmp_path_factory.mktemp("report"), title="Two models", runs=runs)


@pytest.fixture
def page(browser, report):
    """The page, freshly opened from disk, with its first picture drawn."""
    use_scheme(browser, "light")
    browser.get_log("browser")  # what earlier pages left
    browser.get_log("performance")
    browser.get(report.as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    return browser


def test_no_console_message_and_no_request(page):
    page.find_element(By.ID, "play").click()
    time.sleep(0.3)
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert any(url.startswith("file:") for url in sent)  # the page itself: the log does record requests
    assert [url for url in sent if not url.startswith(("file:", "data:", "blob:"))] == []
    assert sum(url.startswith("file:") for url in sent) == len({u for u in sent if u.startswith("file:")})
    assert (
        page.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
            ".filter(n => !n.startsWith('data:') && !n.startsWith('blob:'))"
        )
        == []
    )


def test_pictures_are_the_fields(page, runs):
    rollout = runs[0].rollouts[0]
    field = data(page)["player"]["fields"][0]
    truth, prediction = rollout.truth[0, 8, :, :, 0], rollout.prediction[0, 8, :, :, 0]
    for kind, values in (("truth", truth), ("prediction", prediction)):
        wanted = expected(values, field["limits"], diverging_map())
        assert np.abs(pixels(page, kind) - wanted).mean() < 3
    wanted = expected(prediction - truth, field["difference_limits"], difference_map())
    assert np.abs(pixels(page, "difference") - wanted).mean() < 4


def test_small_grids_are_enlarged_smoothly(page):
    """Between grid points the colours pass from one to the next: no step is larger than between grid points."""
    drawn, points = canvas(page, "truth"), pixels(page, "truth")
    assert drawn.shape[1] > 100
    assert np.abs(np.diff(drawn, axis=1)).max() < 0.5 * np.abs(np.diff(points, axis=1)).max()


def test_play_advances_and_pause_holds(page):
    button = page.find_element(By.ID, "play")
    before = pixels(page, "truth")
    button.click()
    assert button.get_attribute("aria-label") == "Pause"
    wait(page, lambda: frame(page) >= 2)
    assert not np.array_equal(pixels(page, "truth"), before)
    button.click()
    held = frame(page)
    time.sleep(0.6)
    assert frame(page) == held
    assert button.get_attribute("aria-label") == "Play"


def test_dragging_the_slider_seeks(page, runs):
    slider = page.find_element(By.ID, "seek")
    width = slider.size["width"]
    ActionChains(page).move_to_element_with_offset(slider, 10 - width // 2, 0).click_and_hold().move_by_offset(
        width - 20, 0
    ).release().perform()
    assert frame(page) == 5
    assert text(page, "clock") == "t = 0.75 · frame 6 of 6"
    field = data(page)["player"]["fields"][0]
    wanted = expected(runs[0].rollouts[0].truth[5, 8, :, :, 0], field["limits"], diverging_map())
    assert np.abs(pixels(page, "truth") - wanted).mean() < 3


def test_keyboard_plays_and_steps(page):
    body = page.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert frame(page) == 1
    body.send_keys(Keys.END)
    assert frame(page) == 5
    body.send_keys(Keys.SPACE)
    wait(page, lambda: frame(page) == 2)
    body.send_keys(Keys.SPACE)
    assert page.find_element(By.ID, "play").get_attribute("aria-label") == "Play"


def test_choosing_field_sample_slice_and_model_changes_the_picture(page, runs):
    choose(page, "field", 2)
    rollout = runs[0].rollouts[0]
    limits = data(page)["player"]["fields"][2]["limits"]
    wanted = expected(rollout.truth[0, 8, :, :, 2], limits, diverging_map())
    assert np.abs(pixels(page, "truth") - wanted).mean() < 3
    assert text(page, "name-field") == "velocity₂"
    assert "velocity₂" in page.find_element(By.ID, "canvas-truth").get_attribute("aria-label")
    choose(page, "sample", 1)
    wanted = expected(runs[0].rollouts[1].truth[0, 8, :, :, 2], limits, diverging_map())
    assert np.abs(pixels(page, "truth") - wanted).mean() < 3
    choose(page, "plane", 1)
    assert pixels(page, "truth").shape[:2] == (10, 16)
    choose(page, "run", 1)
    wanted = expected(runs[1].rollouts[1].prediction[0, :, 6, :, 2], limits, diverging_map())
    assert np.abs(pixels(page, "prediction") - wanted).mean() < 3


def test_the_pointer_reads_values(page, runs):
    frame_box = page.find_element(By.ID, "canvas-prediction")
    ActionChains(page).move_to_element(frame_box).perform()
    words = text(page, "readout-point").replace("−", "-")
    found = re.fullmatch(r"x₂ = (\S+), x₃ = (\S+) · truth (\S+) · prediction (\S+) · difference (\S+)", words)
    right, up, truth, prediction, difference = (float(number) for number in found.groups())
    point = (0, 8, round(right / (2 * np.pi) * 12), round(up / (2 * np.pi) * 10), 0)  # coordinates of grid points
    low, high = data(page)["player"]["fields"][0]["truth_range"]
    assert truth == pytest.approx(runs[0].rollouts[0].truth[point], abs=0.01 * (high - low))
    assert prediction == pytest.approx(runs[0].rollouts[0].prediction[point], abs=0.01 * (high - low))
    assert difference == pytest.approx(prediction - truth, abs=0.01)


def test_numbers_equal_the_json(page, runs):
    tables = {
        (row["model"], row["protocol"]): row
        for row in json.loads((write_target(page)).read_text())["rows"]
        if row["protocol"]
    }
    for run, protocol in zip(runs, ("LM", "AR"), strict=True):
        row = tables[run.name, protocol]
        for group in ("pressure", "velocity"):
            assert row[f"{group}.relative_l2"] == run.evaluation.fields[group].relative_l2
    cells = page.execute_script(
        "return [...document.querySelectorAll('#comparison tbody tr')]"
        ".map(r => [...r.cells].map(c => [c.dataset.value, c.textContent]))"
    )
    keys = page.execute_script(
        "return [...document.querySelectorAll('#comparison th[data-key]')].map(h => h.dataset.key)"
    )
    for cell_row, run in zip(cells, runs, strict=False):
        for key, (value, words) in zip(keys, cell_row, strict=True):
            group, _, quantity = key.rpartition(".")
            if group:
                number = getattr(run.evaluation.fields[group], quantity)
                assert float(value) == number
                assert float(words) == pytest.approx(number, rel=5e-3, abs=5e-5)
    best = runs[0].evaluation.fields["pressure"].relative_l2
    assert page.find_element(By.CSS_SELECTOR, "[data-key='pressure.relative_l2'].card-value").text == f"{best:.4f}"
    shown = float(text(page, "readout-error").split(": ")[1])
    assert shown == pytest.approx(data(page)["player"]["errors"][0][0]["pressure"][0], abs=5e-5)


def write_target(page):
    from pathlib import Path
    from urllib.parse import unquote, urlparse

    return Path(unquote(urlparse(page.current_url).path)).with_name("comparison.json")


def test_sorting_sorts_both_ways(page):
    def column(index):
        return page.execute_script(
            f"return [...document.querySelectorAll('#comparison tbody tr')].map(r => r.cells[{index}].dataset.value)"
        )

    head = page.find_element(By.CSS_SELECTOR, "#comparison th[data-key='velocity.relative_l2']")
    index = page.execute_script("return arguments[0].cellIndex", head)
    head.find_element(By.TAG_NAME, "button").click()
    values = [float(v) for v in column(index)]
    assert values == sorted(values)
    assert head.get_attribute("aria-sort") == "ascending"
    head.find_element(By.TAG_NAME, "button").click()
    values = [float(v) for v in column(index)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3
    name = page.find_element(By.CSS_SELECTOR, "#comparison th[data-key='model']")
    name.find_element(By.TAG_NAME, "button").click()
    assert column(0) == ["factformer", "ffno", "persistence"]
    assert head.get_attribute("aria-sort") == "none"
    spread = page.find_element(By.CSS_SELECTOR, "#comparison th[data-key='velocity.vrmse']")
    for _ in range(2):  # persistence has no such value and stays last both ways
        spread.find_element(By.TAG_NAME, "button").click()
        assert column(0)[-1] == "persistence"


def test_the_trend_shows_values_and_leads_the_player(page, runs):
    chart = page.find_element(By.ID, "trend")
    page.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", chart)
    ActionChains(page).move_to_element_with_offset(chart, chart.size["width"] // 2 - 16, -60).perform()
    tooltip = chart.find_element(By.CLASS_NAME, "tooltip").text
    assert "frame 6, t = 0.75" in tooltip
    for run in runs:
        assert f"{run.evaluation.fields['pressure'].relative_l2_per_frame[-1]:.4f}" in tooltip
    ActionChains(page).click().perform()
    assert frame(page) == 5
    assert len(chart.find_elements(By.CSS_SELECTOR, "path.series")) == 3
    page.find_element(By.CSS_SELECTOR, "#trend-tabs button:nth-child(2)").click()
    page.execute_script("arguments[0].focus()", chart)
    chart.send_keys(Keys.ARROW_RIGHT)
    first = runs[0].evaluation.fields["velocity"].relative_l2_per_frame[0]
    assert f"{first:.4f}" in chart.find_element(By.CLASS_NAME, "tooltip").text


def test_dark_pages_get_a_dark_centre(page, runs):
    light = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    field = data(page)["player"]["fields"][0]
    use_scheme(page, "dark")
    assert page.execute_script("return getComputedStyle(document.body).backgroundColor") != light
    wanted = expected(runs[0].rollouts[0].truth[0, 8, :, :, 0], field["limits"], diverging_map(dark=True))
    wait(page, lambda: np.abs(pixels(page, "truth") - wanted).mean() < 3)


def test_a_phone_needs_no_sideways_scrolling(page):
    with on_a_phone(page):
        sizes = page.execute_script(
            "return [...document.querySelectorAll('button, select, input')].filter(e => e.offsetParent)"
            ".map(e => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 12


def test_every_control_has_a_name(page):
    assert unnamed_controls(page) == []


def test_a_grid_of_one_axis_draws_lines(browser, tmp_path):
    run = make_run(shape=(32,), num_frames=3, num_samples=1)
    browser.get(write_report(tmp_path, title="line", runs=[run]).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    assert re.fullmatch(r"vorticity ↑ −\S+ … \S+", text(browser, "name-field"))
    assert "share one scale" in browser.find_element(By.CSS_SELECTOR, "#player-title + .hint").text
    boxes = [browser.find_element(By.ID, name).rect for name in ("canvas-truth", "name-field")]
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    first = canvas(browser, "prediction")
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.ARROW_RIGHT)
    assert frame(browser) == 1
    assert not np.array_equal(canvas(browser, "prediction"), first)
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def on_grid(run, grid):
    """A run whose samples lie on another grid of the same shape."""
    return replace(run, problem=None, grid=grid)


@pytest.mark.parametrize(("extent", "most"), [((2.0, 1.0), 1.0), ((1.0, 4.0), 0.41)])
def test_pictures_have_the_shape_of_the_box(browser, tmp_path, extent, most):
    run = on_grid(make_run(shape=(16, 12), num_frames=2, num_samples=1), Grid((16, 12), extent, False, "cells"))
    browser.get(write_report(tmp_path, title="box", runs=[run]).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    size = browser.find_element(By.ID, "canvas-truth").size
    assert size["width"] / size["height"] == pytest.approx(extent[0] / extent[1], rel=0.02)
    column = browser.find_element(By.ID, "screen-truth").size["width"]
    assert size["width"] == pytest.approx(most * column, rel=0.05)
    assert text(browser, "readout-point") == f"x₁ → 0 … {extent[0]:g}, x₂ ↑ 0 … {extent[1]:g}"


def test_very_long_boxes_stay_in_sight(browser, tmp_path):
    run = on_grid(make_run(shape=(16, 12), num_frames=2, num_samples=1), Grid((16, 12), (1000.0, 1.0), True))
    browser.get(write_report(tmp_path, title="long", runs=[run]).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    size = browser.find_element(By.ID, "canvas-truth").size
    assert size["width"] / size["height"] == pytest.approx(6, rel=0.02)
    assert text(browser, "readout-point").endswith(" · not to scale")


def test_uneven_points_are_drawn_where_they_lie(browser, tmp_path):
    """Values that equal their first coordinate: their colours run evenly, however the points lie."""
    far = np.array([0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 1.6, 2.0, 2.5, 3.2, 4.0])
    grid = Grid.from_axes([far, np.linspace(0, 2, 6)])
    run = on_grid(make_run(shape=(12, 6), num_frames=2, num_samples=1), grid)
    ramp = np.broadcast_to(far[:, None, None], (2, 12, 6, 1)).astype(np.float32)
    run = replace(run, rollouts=[type(run.rollouts[0])(ramp, ramp)])
    browser.get(write_report(tmp_path, title="uneven", runs=[run]).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    drawn = canvas(browser, "truth")
    limits = data(browser)["player"]["fields"][0]["limits"]
    even = (np.arange(drawn.shape[1]) + 0.5) / drawn.shape[1] * 4
    wanted = expected(np.repeat(even[:, None], drawn.shape[0], axis=1), limits, sequential_map())
    assert np.abs(drawn - wanted).mean() < 3
    picture = browser.find_element(By.ID, "canvas-truth")
    ActionChains(browser).move_to_element_with_offset(picture, round(0.3 * picture.size["width"]), 0).perform()
    assert text(browser, "readout-point").startswith("x₁ = 3.2, x₂ = ")  # 0.8 of 4


def test_a_steady_problem_shows_what_it_is_solved_for(browser, tmp_path):
    run = make_steady_run()
    browser.get(write_report(tmp_path, title="steady", runs=[run]).as_uri())
    wait(browser, lambda: canvas(browser, "input").max() > 0)
    drawn = canvas(browser, "input")
    wanted = expected(run.rollouts[0].context[0, ..., 0], (3, 12), sequential_map())
    assert np.abs(drawn - wanted).mean() < 1
    assert not browser.find_element(By.ID, "play").is_displayed()
    assert "coefficient, 3 to 12" in browser.find_element(By.ID, "screen-input").text
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_the_input_of_a_steady_problem_on_an_uneven_line(browser, tmp_path):
    run = make_steady_run()
    middle = [type(r)(r.truth[:, :, 12], r.prediction[:, :, 12], r.context[:, :, 12]) for r in run.rollouts]
    grid = Grid.from_axes([np.arange(24.0) ** 2])
    run = replace(run, problem=run.problem.with_grid(grid), grid=grid, rollouts=middle)
    browser.get(write_report(tmp_path, title="steady line", runs=[run]).as_uri())
    wait(browser, lambda: text(browser, "name-field") != "")
    drawn = canvas(browser, "input")
    assert drawn.shape[0] == pytest.approx(0.75 * drawn.shape[1], abs=1)
    assert drawn.max() > 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_an_old_browser_is_told_so(browser, report):
    remove = {"source": "delete globalThis.DecompressionStream"}
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", remove)
    try:
        browser.get(report.as_uri())
        assert "too old" in browser.find_element(By.CLASS_NAME, "screens").text
        assert len(browser.find_elements(By.CSS_SELECTOR, "#trend path.series")) == 3
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_long_names_stay_inside_their_cards(browser, tmp_path):
    options = {"shape": (8, 8), "num_frames": 2, "num_samples": 1}
    runs = [make_run("factformer_plus_with_a_long_name", **options), make_run("ffno", lag=0.3, **options)]
    browser.get(write_report(tmp_path, title="names", runs=runs).as_uri())
    widths = browser.execute_script(
        "return [...document.querySelectorAll('.card')].map(c => [c.scrollWidth, c.clientWidth])"
    )
    assert len(widths) >= 4
    assert all(inner <= outer for inner, outer in widths)


def test_bodies_are_grey_and_as_large_as_they_are(browser, tmp_path):
    run = make_run(shape=(16, 12), num_frames=2, num_samples=1)
    body = np.zeros((16, 12), dtype=bool)
    body[5:9, 3:6] = True
    whole = run.rollouts[0]
    cut = [np.where(body[..., None], np.float32(np.nan), values) for values in (whole.truth, whole.prediction)]
    run = replace(run, rollouts=[type(whole)(*cut)])
    browser.get(write_report(tmp_path, title="body", runs=[run]).as_uri())
    wait(browser, lambda: text(browser, "clock") != "")
    for kind in ("truth", "prediction", "difference"):
        drawn = canvas(browser, kind)
        factor = drawn.shape[1] // 16
        grey = (drawn == 128).all(-1)
        assert np.array_equal(grey, body.T[::-1].repeat(factor, 0).repeat(factor, 1))
