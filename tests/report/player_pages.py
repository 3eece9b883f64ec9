"""What a report in the browser shows: its numbers, the pixels of its pictures, and choosing in it."""

import json

import numpy as np
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from tests.browsers import wait


def text(browser, name):
    return browser.find_element(By.ID, name).text


def frame(browser):
    return int(browser.find_element(By.ID, "seek").get_attribute("value"))


def canvas(browser, kind):
    """All pixels as (row, column, RGB), the first row on top."""
    width, height, values = browser.execute_script(
        f"const c = document.getElementById('canvas-{kind}');"
        "return [c.width, c.height, [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]];"
    )
    return np.array(values).reshape(height, width, 4)[..., :3]


def pixels(browser, kind):
    """The pixels that lie on grid points: the middle of each enlarged one."""
    drawn = canvas(browser, kind)
    place = data(browser)["player"]["planes"][int(browser.find_element(By.ID, "choose-plane").get_attribute("value"))]
    factor = drawn.shape[1] // place["width"]
    assert drawn.shape[:2] == (place["height"] * factor, place["width"] * factor)
    return drawn[factor // 2 :: factor, factor // 2 :: factor]


def expected(values, limits, colors):
    """What the picture of ``values`` (right, up) must look like."""
    share = (values - limits[0]) / (limits[1] - limits[0])
    return colors(np.clip(share, 0, 1).T[::-1])[..., :3] * 255


def data(browser):
    return json.loads(browser.execute_script("return document.getElementById('data').textContent"))


def choose(browser, name, value):
    """Choose an option and wait until the new picture is there."""
    old = pixels(browser, "difference")
    Select(browser.find_element(By.ID, f"choose-{name}")).select_by_value(str(value))
    wait(browser, lambda: not np.array_equal(pixels(browser, "difference"), old))
