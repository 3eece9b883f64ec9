"""The page to play with in a real browser: Chromium through Selenium, skipped where there is none."""

from __future__ import annotations

import io
import re
import urllib.request

import numpy as np
import pytest
import torch
from serve_bundles import as_arrays, everything, full_batch, small_surrogate, steady
from served import serving_here

from factformer import rollout, simulate
from factformer.metrics import relative_l2_per_frame
from factformer.pdes import find_pde
from factformer.report.style import diverging_map

pytest.importorskip("selenium", reason="needs selenium, a development dependency")

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select
from tests.browsers import on_a_phone, requested, unnamed_controls, use_scheme, wait


@pytest.fixture(scope="module")
def address(surrogate):
    with serving_here(surrogate) as found:
        yield found


def opened(browser, address):
    use_scheme(browser, "light")
    browser.get_log("browser")  # what earlier pages left
    browser.get_log("performance")
    browser.get(address)
    return browser


@pytest.fixture
def page(browser, address):
    """The page with its first picture drawn, paused."""
    opened(browser, address)
    wait(browser, lambda: number(browser) > 0)
    browser.find_element(By.ID, "play").click()
    settle(browser)
    yield browser
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def settle(page):
    """Wait until nothing is asked for and what was asked for is drawn."""
    wait(page, lambda: page.execute_script("return !live.running && !live.wants() && Boolean(live.stage.shown)"))


def element(page, name):
    return page.find_element(By.ID, name)


def number(page):
    """Of the frame that the clock shows."""
    found = re.search(r"frame (\d+)", element(page, "clock").text)
    return int(found.group(1)) if found else 0


def state(page):
    """What the surrogate sees, as the link of the page gives it."""
    with urllib.request.urlopen(element(page, "save").get_attribute("href")) as answer:
        return dict(np.load(io.BytesIO(answer.read()), allow_pickle=False))


def context(page):
    return torch.from_numpy(state(page)["context"])


def pixels(page, kind, size):
    """The pixels in the middle of each enlarged grid point, as (up, right, RGB)."""
    width, height, values = page.execute_script(
        f"const c = document.getElementById('canvas-{kind}');"
        "return [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]];"
    )
    drawn = np.array(values).reshape(height, width, 4)[::-1, :, :3]
    factor = width // size[0]
    return drawn[factor // 2 :: factor, factor // 2 :: factor]


def drag(page, name="canvas-prediction", way=((-80, 40), (60, -10), (60, -10))):
    chain = ActionChains(page, duration=20).move_to_element_with_offset(element(page, name), *way[0]).click_and_hold()
    for right, down in way[1:]:
        chain = chain.move_by_offset(right, down)
    chain.release().perform()


def test_the_flow_runs_and_asks_nobody_else(browser, address):
    page = opened(browser, address)
    wait(page, lambda: number(page) >= 3)
    assert page.get_log("browser") == []
    sent = [url for url in requested(page) if not url.startswith(("data:", "blob:"))]
    assert f"{address}/assets/page.js" in sent
    assert [url for url in sent if not url.startswith(f"{address}/")] == []
    assert "frames/s" in element(page, "rate").text


def test_pictures_are_the_frames(page):
    frame = context(page)[0, -1, ..., 0].numpy().T
    limits = page.execute_script("return live.stage.limits('prediction')")
    for scheme in ("light", "dark"):
        use_scheme(page, scheme)
        colors = diverging_map(dark=scheme == "dark")
        wanted = colors(np.clip((frame - limits[0]) / (limits[1] - limits[0]), 0, 1))[..., :3] * 255
        wait(page, lambda: np.abs(pixels(page, "prediction", (24, 24)) - wanted).mean() < 3)  # noqa: B023


def test_stirring_changes_the_state(page):
    before = context(page)
    drag(page)
    settle(page)
    added = context(page) - before
    assert float(added.abs().max()) > 0.3
    strongest = np.unravel_index(int(added[0, -1, ..., 0].abs().argmax()), (24, 24))
    size = element(page, "canvas-prediction").size
    middle = (0.5 - 20 / size["width"], 0.5 - 30 / size["height"])  # of the way, as shares to the right and up
    assert np.hypot(strongest[0] / 24 - middle[0], strongest[1] / 24 - middle[1]) < 0.2
    after = context(page)
    ActionChains(page).move_to_element_with_offset(element(page, "canvas-prediction"), 90, 90).click().perform()
    settle(page)
    assert not torch.equal(context(page), after)
    element(page, "restart").click()
    settle(page)
    assert number(page) == 0


def test_the_comparison_shows_the_numbers_of_the_python_interface(page, surrogate):
    drag(page)
    settle(page)
    start = context(page)
    element(page, "invite").click()
    settle(page)
    assert "relative error 0.0000" in element(page, "error-now").text
    count = 3
    for _ in range(count):
        element(page, "step").click()
        settle(page)
    truth = simulate("kolmogorov_flow", start[:, -1], count + 1, 1 / 16, **surrogate.provenance["data_parameters"])
    with torch.no_grad():
        predicted = torch.stack(list(rollout(surrogate, start, count)), dim=1)
    errors = relative_l2_per_frame(predicted, truth[:, 1:])[0].tolist()
    shown = element(page, "error-now")
    assert shown.get_attribute("data-since") == str(count)
    assert float(shown.get_attribute("data-error")) == pytest.approx(errors[-1], rel=1e-4)
    assert shown.text == f"relative error {errors[-1]:.4f}"
    assert page.execute_script("return live.errors.y") == pytest.approx([0, *errors], rel=1e-4)
    drawn = page.execute_script("return [...live.stage.values('difference')]")
    difference = (predicted[0, -1] - truth[0, -1])[..., 0].T.flatten()
    assert np.allclose(drawn, difference, atol=1e-4)
    assert len(page.find_elements(By.CSS_SELECTOR, "#spectrum path.series")) == 2
    assert len(page.find_elements(By.CSS_SELECTOR, "#error path.series")) == 1
    element(page, "compare").click()
    settle(page)
    assert not element(page, "screen-truth").is_displayed()


def test_keys_do_what_the_page_says(page):
    body = page.find_element(By.TAG_NAME, "body")
    page.execute_script("document.activeElement.blur()")
    first = number(page)
    body.send_keys(Keys.ARROW_RIGHT)
    settle(page)
    assert number(page) == first + 1
    before = context(page)
    body.send_keys("s")
    settle(page)
    assert not torch.equal(context(page), before)
    body.send_keys("c")
    settle(page)
    assert element(page, "compare").get_attribute("aria-pressed") == "true"
    body.send_keys(" ")
    wait(page, lambda: number(page) > first + 2)
    body.send_keys(" ")
    settle(page)
    body.send_keys("r")
    settle(page)
    assert number(page) == 0
    start = context(page)
    body.send_keys("n")
    wait(page, lambda: not torch.equal(context(page), start))
    settle(page)
    picture = element(page, "canvas-prediction")
    page.execute_script("arguments[0].focus()", picture)
    aim = page.execute_script("return live.aim")
    picture.send_keys(Keys.ARROW_LEFT, Keys.ARROW_UP)
    assert page.execute_script("return live.aim") == pytest.approx([aim[0] - 0.02, aim[1] + 0.02])
    before = context(page)
    picture.send_keys(Keys.ENTER)
    settle(page)
    assert not torch.equal(context(page), before)


def test_a_phone_stirs_by_touch_and_needs_no_sideways_scrolling(page):
    with on_a_phone(page):
        page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element(page, "canvas-prediction"))
        before = context(page)
        finger = ActionBuilder(page, mouse=PointerInput("touch", "finger"))
        finger.pointer_action.move_to(element(page, "canvas-prediction"), -50, 0).pointer_down()
        finger.pointer_action.move_to(element(page, "canvas-prediction"), 50, 10).pointer_up()
        finger.perform()
        settle(page)
        assert not torch.equal(context(page), before)


def test_every_control_has_a_name(page):
    assert unnamed_controls(page) == []


def test_labels_of_small_numbers(page):
    """Ticks that are no power of ten were labelled as one, and one of two minus signs was a hyphen."""
    script = "return [tickLabel(5e-4), tickLabel(1e-4), tickLabel(2e4), formatNumber(-1e-6)]"
    assert page.execute_script(script) == ["5.00e−4", "10⁻⁴", "20000", "−1.00e−6"]


def test_a_body_parameters_and_fields_from_a_file(browser, tmp_path):
    """A problem without an equation of ours: it is asked for a file, a body is grey, the parameter moves."""
    surrogate = everything()
    arrays = as_arrays(full_batch(surrogate, num_frames=200))
    arrays["mask"] = np.ones((1, 10, 8), bool)
    arrays["mask"][0, 3:5, 2:5] = False
    np.savez(tmp_path / "start.npz", **arrays)
    with serving_here(surrogate) as address:
        page = opened(browser, address)
        wait(page, lambda: element(page, "empty").is_displayed())
        element(page, "first-file").send_keys(str(tmp_path / "start.npz"))
        wait(page, lambda: number(page) > 1)
        element(page, "play").click()
        settle(page)
        grey = (pixels(page, "prediction", (10, 8)) == 128).all(-1)
        np.testing.assert_array_equal(grey, ~arrays["mask"][0].T)
        Select(element(page, "choose-field")).select_by_value("2")
        settle(page)
        assert "pressure" in element(page, "name-field").text
        slider = page.find_element(By.CSS_SELECTOR, "[data-parameter=reynolds]")
        before = state(page)["parameters"].item()
        slider.send_keys(Keys.END)
        settle(page)
        assert state(page)["parameters"].item() > before
        assert not page.find_elements(By.ID, "compare")
        assert "no equation of the catalog" in page.find_element(By.TAG_NAME, "main").text
        assert page.get_log("browser") == []


@pytest.mark.parametrize(("name", "size", "planes"), [("burgers", 32, 1), ("isotropic_turbulence", 8, 3)])
def test_lines_and_slices(browser, name, size, planes):
    surrogate = small_surrogate(find_pde(name).problem(size), marching_steps=1)
    surrogate.provenance = {"problem": name, "data_parameters": {"dt": 0.025}}
    with serving_here(surrogate) as address:
        page = opened(browser, address)
        wait(page, lambda: number(page) > 0)
        element(page, "play").click()
        settle(page)
        before = context(page)
        drag(page)
        settle(page)
        assert not torch.equal(context(page), before)
        assert element(page, "choose-plane").is_displayed() == (planes > 1)
        if planes > 1:
            Select(element(page, "choose-plane")).select_by_value("2")
            settle(page)
            assert "x₁–x₂ plane" in element(page, "canvas-prediction").get_attribute("aria-label")
        assert page.get_log("browser") == []


def test_a_steady_problem_is_drawn_on(browser):
    with serving_here(steady()) as address:
        page = opened(browser, address)
        wait(page, lambda: page.execute_script("return Boolean(live.stage.shown)"))
        settle(page)
        assert not element(page, "play").is_displayed()
        element(page, "compare").click()
        settle(page)
        before = state(page)["static"], element(page, "error-now").get_attribute("data-error")
        drag(page, "canvas-input")
        settle(page)
        assert not np.array_equal(state(page)["static"], before[0])
        assert element(page, "error-now").get_attribute("data-error") != before[1]
        assert page.get_log("browser") == []
