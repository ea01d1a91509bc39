"""The Attention tab end to end: Chromium, a running TensorBoard, and a trained run."""

import csv
import gzip
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pytest
from PIL import Image

from gpt.attention_maps.probes import Probe, token_labels
from tests.conftest import chromium
from tests.runs import scalars
from tests.serving import (
    synthetic_capture,
    tensorboard,
    wait_for_captures,
    wait_for_runs,
    write_run,
    write_series,
    write_test_runs,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, FrameLocator, Page

pytestmark = pytest.mark.browser
WAIT = 20_000  # milliseconds

T = TypeVar("T")


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("tab") / "runs"
    folder.mkdir()
    write_test_runs(tiny_run, folder)
    write_run(folder / "gpt2", [0], layers=12, heads=12, labels=[f"·word{i}" for i in range(64)])
    with tensorboard(folder) as address:
        for run, count in (("real", 4), ("other_shape", 2), ("long", 500), ("gpt2", 1)):
            for tag in wait_for_runs(address, {run})[run]:
                wait_for_captures(address, run, tag, count)
        yield address


@pytest.fixture
def page(browser: "Browser") -> "Iterator[Page]":
    """A page that fails the test if its console shows an error."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    errors: list[str] = []

    def note(message: "ConsoleMessage") -> None:
        # Outside TensorBoard the page has no icon.
        if message.type == "error" and "favicon" not in message.location["url"]:
            errors.append(f"{message.text} ({message.location['url']})")

    page.on("console", note)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"a dialog: {dialog.message}"))
    yield page
    page.close()
    assert errors == []


def _open(page: "Page", address: str, in_tensorboard: bool = False, **parts: object) -> "Page | FrameLocator":
    """Open the tab and wait until it is drawn: inside TensorBoard, or alone, which loads faster."""
    fragment = "&".join(["attention", *(f"p.attention.{name}={value}" for name, value in parts.items())])
    page.goto("about:blank")  # a change of only the fragment would not reload the page
    page.goto(f"{address}/{'' if in_tensorboard else 'data/plugin_entry.html?name=attention'}#{fragment}")
    tab = page.frame_locator("iframe[src*='name=attention']") if in_tensorboard else page
    tab.locator(".summary").first.filter(has_text=re.compile(r"\S")).wait_for(timeout=WAIT)  # written after the map
    page.wait_for_function("() => location.hash.includes('p.attention.head')", timeout=WAIT)
    return tab


def _wait_for(page: "Page", read: Callable[[], T], accept: Callable[[T], bool]) -> T:
    """Read a value until it is accepted: the tab draws later than the action that changes it."""
    for _ in range(WAIT // 50):
        if accept(value := read()):
            return value
        page.wait_for_timeout(50)
    raise AssertionError(f"not accepted: {value!r}")


def _map_image(frame: "Page | FrameLocator") -> str:
    """The large map as a data URL."""
    return frame.locator("canvas.map").first.evaluate("c => c.toDataURL()")


def _colours(frame: "Page | FrameLocator") -> set[tuple[int, ...]]:
    """The colours of the large map."""
    script = """c => {
        const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return [...new Set(new Uint32Array(data.buffer))].map(n => [n & 255, (n >> 8) & 255, (n >> 16) & 255]);
    }"""
    return {tuple(colour) for colour in frame.locator("canvas.map").first.evaluate(script)}


def _loss_bars(frame: "Page | FrameLocator", view: int = 0) -> list[float]:
    """Height of the bar below each token of a text, in pixels."""
    tokens = frame.locator(".text-view").nth(view).locator(".token")
    return tokens.evaluate_all("ts => ts.map(t => parseFloat(getComputedStyle(t).backgroundSize.split(' ')[1]))")


def _move_slider(frame: "Page | FrameLocator", index: int) -> None:
    slider = frame.get_by_label("step of main view", exact=True)
    slider.evaluate(f"e => {{ e.value = {index}; e.dispatchEvent(new Event('input')); }}")


def test_the_tab_is_listed_and_draws_a_map(page: "Page", served: str) -> None:
    page.goto(served)
    page.get_by_role("tab", name="Attention").click(timeout=WAIT)
    page.frame_locator("iframe[src*='name=attention']").locator(".step").first.wait_for(timeout=WAIT)
    frame = _open(page, served, in_tensorboard=True, run="real")
    assert frame.locator(".step").first.inner_text() == "step 30 (4 of 4)"
    assert frame.locator(".tile").count() == 4
    assert len(_colours(frame)) > 10
    assert (208, 208, 208) in _colours(frame)  # masked future keys


def test_predictions_are_those_of_the_capture_and_change_with_the_step(
    page: "Page", served: str, tiny_run: Path
) -> None:
    (tag,) = (tag for tag in wait_for_runs(served, {"real"})["real"] if "text" in tag)
    captures = wait_for_captures(served, "real", tag, 4)
    frame = _open(page, served, run="real", token=5)
    text = frame.locator(".prediction").first

    def expected(capture: dict) -> str:
        shown = capture["predictions"]
        pairs = zip(shown["likeliest"][5], shown["probabilities"][5], strict=True)
        named = (f"“{label}” {p:.2f}" if p >= 0.01 else f"“{label}” {p:.1g}" for label, p in pairs)
        return f" the model predicts {'  '.join(named)}."

    assert expected(captures[-1]) in text.text_content()
    assert f"loss {captures[-1]['predictions']['losses'][4]:.2f} nats" in text.text_content()
    losses = [None, *captures[-1]["predictions"]["losses"]]
    for token, (loss, pixels) in enumerate(zip(losses, _loss_bars(frame), strict=True)):
        assert pixels == pytest.approx(min(1, loss / 6) * 10 if loss is not None else 0, abs=0.02), token
    _move_slider(frame, 0)
    _wait_for(page, text.text_content, lambda content: expected(captures[0]) in content)


def test_importance_is_a_badge_a_frame_a_score_and_a_curve(page: "Page", served: str) -> None:
    (tag,) = (tag for tag in wait_for_runs(served, {"real"})["real"] if "text" in tag)
    rises = wait_for_captures(served, "real", tag, 4)[-1]["scores"]["mean_ablation"]
    frame = _open(page, served, run="real", layer=1, head=0)
    assert frame.locator(".importance").first.inner_text() == f"importance {_shown(rises[1][0])} nats"
    frames = frame.locator(".tile").evaluate_all(
        "tiles => tiles.map(tile => Number(tile.style.getPropertyValue('--importance')))"
    )
    flat = rises[0] + rises[1]
    assert frames == pytest.approx([max(0, rise) / max(0.05, *flat) for rise in flat], abs=1e-6)
    card = frame.locator(".card", has_text="importance").first
    assert card.locator("b").inner_text() == _shown(rises[1][0])
    assert len(card.locator("polyline").get_attribute("points").split()) == 2  # measured at steps 0 and 30
    frame.locator("select:has(option[value='mean_ablation'])").select_option("mean_ablation")
    frame.get_by_label("sort by score").check()
    best = max(range(4), key=flat.__getitem__)
    first = frame.locator(".tile").first
    _wait_for(page, first.inner_text, lambda caption: caption.startswith(f"L{best // 2}H{best % 2}"))


def test_roles_are_those_that_were_measured(page: "Page", served: str) -> None:
    (tag,) = (tag for tag in wait_for_runs(served, {"real"})["real"] if "text" in tag)
    roles = wait_for_captures(served, "real", tag, 4)[-1]["roles"]
    frame = _open(page, served, run="real", layer=0, head=1)
    role = roles[0][1]
    expected = f"{role[0]} {role[1]:.2f}" if role else "no clear role"
    assert frame.locator(".badge").first.inner_text() == expected


def test_the_loss_by_position_is_drawn_for_each_validation(page: "Page", served: str) -> None:
    frame = _open(page, served, run="real", step=12)
    lines = frame.locator(".loss-chart polyline")
    _wait_for(page, lines.count, lambda count: count == 3)
    assert lines.evaluate_all("lines => lines.map(line => line.dataset.step)") == ["12", "24", "30"]
    assert (
        frame.locator(".loss-chart polyline.current").count() == 0
    )  # the shown capture, of step 8, has none before it
    assert "first measured at step 12" in frame.locator(".losses-by-position").inner_text()
    frame = _open(page, served, run="real", step=30)
    _wait_for(page, lines.count, lambda count: count == 3)
    assert frame.locator(".loss-chart polyline.current").get_attribute("data-step") == "30"
    heights = [float(point.split(",")[1]) for point in lines.last.get_attribute("points").split()]
    assert len(heights) > 10
    assert len({*heights}) > 5
    frame = _open(page, served, run="long")  # has no validations
    assert not frame.locator(".losses-by-position").first.is_visible()


def test_the_slider_changes_the_map_and_the_address(page: "Page", served: str) -> None:
    frame = _open(page, served, run="real")
    last = _map_image(frame)
    _move_slider(frame, 0)
    first = _wait_for(page, lambda: _map_image(frame), lambda image: image != last)
    assert frame.locator(".step").first.inner_text() == "step 0 (1 of 4)"
    assert not frame.get_by_label("follow latest").first.is_checked()
    page.wait_for_function("() => location.hash.includes('p.attention.step=0')")
    frame.get_by_label("next capture").first.click()
    assert _wait_for(page, lambda: _map_image(frame), lambda image: image != first) != last
    assert "step 2 " in frame.locator(".step").first.inner_text()


def test_the_map_of_an_untrained_model_is_uniform(page: "Page", served: str) -> None:
    """Compare the canvas with the closed form: at step 0 row i is 1/(i+1), drawn in the colour of sqrt(1/(i+1))."""
    frame = _open(page, served, run="real", step=0, token=0)
    pixels = frame.locator("canvas.map").first.evaluate(
        """c => {
            const size = 23, ratio = devicePixelRatio, context = c.getContext('2d'), { cell, margin } = c.dataset;
            return [3, 8, 20].map(i => Array.from(context.getImageData((Number(margin) + 1.5 * cell) * ratio,
                (Number(margin) + (i + 0.5) * cell) * ratio, 1, 1).data.slice(0, 3)));
        }"""
    )
    colours = page.evaluate(
        "async shades => { const { colour } = await import('./colours.js'); return shades.map(colour); }",
        [0, 0.5, 1, *((1 / (row + 1)) ** 0.5 for row in [3, 8, 20])],
    )
    assert colours[:3] == [[0, 34, 78], [112, 113, 115], [254, 232, 56]]  # cividis
    for pixel, expected in zip(pixels, colours[3:], strict=True):
        assert max(abs(a - b) for a, b in zip(pixel, expected, strict=True)) <= 12  # initial weights are small, not 0


def test_hovering_highlights_tokens_and_a_click_pins_one(page: "Page", served: str) -> None:
    frame = _open(page, served, run="real")
    strip = frame.locator(".strip").first

    def highlights() -> str:
        return strip.evaluate("s => [...s.children].map(t => t.style.background).join()")

    before = highlights()
    box = frame.locator("canvas.map").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.5)
    hovered = _wait_for(page, highlights, lambda now: now != before)
    assert re.search(r"\d+ “.*” → \d+ “.*”: 0\.\d{3}", frame.locator(".tooltip").first.inner_text())
    assert "attends to" in frame.locator(".summary").first.inner_text()
    page.mouse.click(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.5)
    page.mouse.move(5, 5)
    page.wait_for_function("() => location.hash.includes('p.attention.token=')")
    assert highlights() == hovered
    frame.get_by_label("Selected token is").select_option("key")
    frame.locator(".summary").first.filter(has_text="is attended to by").wait_for(timeout=WAIT)
    page.keyboard.press("Escape")


def test_keys_select_heads_captures_and_tokens(page: "Page", served: str) -> None:
    frame = _open(page, served, run="real", layer=0, head=0)
    frame.locator(".tile").first.focus()
    for key, title in [
        ("ArrowRight", "Layer 0, head 1"),
        ("ArrowDown", "Layer 1, head 1"),
        ("ArrowLeft", "Layer 1, head 0"),
    ]:
        page.keyboard.press(key)
        frame.get_by_role("heading", name=title).first.wait_for(timeout=WAIT)
    assert "layer 1, head 0" in (frame.locator(".tile:focus").get_attribute("aria-label") or "")
    page.keyboard.press(",")
    frame.locator(".step").first.filter(has_text="step 8 ").wait_for(timeout=WAIT)
    page.keyboard.press(".")
    frame.locator(".step").first.filter(has_text="step 30 ").wait_for(timeout=WAIT)
    strip = frame.locator(".strip").first
    strip.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    frame.locator(".summary").first.filter(has_text=re.compile("^1 “")).wait_for(timeout=WAIT)


def test_an_address_restores_the_view(page: "Page", served: str) -> None:
    view = {"run": "real", "step": 8, "layer": 1, "head": 0, "metric": "sink", "sorted": 1, "scale": "log", "token": 3}
    frame = _open(page, served, in_tensorboard=True, **view, mute=1)
    assert frame.locator(".step").first.inner_text() == "step 8 (3 of 4)"
    assert frame.get_by_role("heading", name="Layer 1, head 0").first.is_visible()
    assert frame.get_by_label("Brightness").input_value() == "log"
    assert frame.get_by_label("mask token 0").is_checked()
    assert frame.locator(".grid.sorted").count() == 1
    assert frame.locator(".summary").first.inner_text().startswith("3 “")
    for name, value in view.items():
        assert f"p.attention.{name}={value}" in page.url


def test_heads_are_sorted_and_filtered_by_score(page: "Page", served: str) -> None:
    frame = _open(page, served, run="other_shape", metric="sink", sorted=1)
    captions = frame.locator(".tile .caption").all_inner_texts()
    values = [float(caption.split()[1]) for caption in captions]
    assert len(values) == 15
    assert values == sorted(values, reverse=True)
    middle = sorted(values)[7]
    slider = frame.get_by_label("minimum")
    slider.evaluate(f"e => {{ e.value = {middle}; e.dispatchEvent(new Event('input')); }}")
    _wait_for(page, frame.locator(".tile").count, lambda count: 5 <= count <= 9)


def test_masking_token_0_renormalises_the_other_weights(page: "Page", served: str) -> None:
    frame = _open(page, served, run="other_shape", layer=0, head=0, token=2)
    summary = frame.locator(".summary").first
    unmasked = summary.inner_text()
    frame.get_by_label("mask token 0").check()
    assert "0 “<start>”" in unmasked
    masked = _wait_for(page, summary.inner_text, lambda text: "0 “<start>”" not in text)
    assert sum(float(w) for w in re.findall(r"” (\d\.\d\d)", masked)) == pytest.approx(1, abs=0.02)


def test_characters_of_several_tokens_are_shown_whole(page: "Page", tmp_path: Path) -> None:
    labels, _ = token_labels([bytes([byte]) for byte in "日本 é".encode()])
    write_run(tmp_path / "runs", [0], labels=["<start>", *labels])
    with tensorboard(tmp_path) as address:
        wait_for_runs(address, {"runs"})
        frame = _open(page, address)
        shown = frame.locator(".token").all_inner_texts()
        assert shown == ["<start>", "日", "⋯", "⋯", "本", "⋯", "⋯", "·", "é", "⋯"]
        assert frame.get_by_label("Probe").first.locator("option:checked").inner_text() == "“日本 é”"
        page.goto("about:blank")  # before the server stops


def test_a_token_of_markup_is_shown_as_text(page: "Page", served: str) -> None:
    frame = _open(page, served, run="other_shape")
    assert frame.locator(".token").all_inner_texts() == ["<start>", "<script>alert(1)</script>", "·c"]
    assert frame.locator("script:has-text('alert')").count() == 0


def test_the_repeated_random_sequence_has_scores_at_every_step_and_maps_at_some(page: "Page", served: str) -> None:
    (tag,) = (tag for tag in wait_for_runs(served, {"real"})["real"] if "random" in tag)
    frame = _open(page, served, run="real", probe=tag)
    assert frame.get_by_label("Probe").first.locator("option:checked").inner_text() == "repeated random sequence"
    frame.locator(".token").nth(30).wait_for(timeout=WAIT)
    _wait_for(page, lambda: len(_colours(frame)), lambda count: count > 10)
    assert frame.locator(".map-note").first.inner_text() == ""
    _move_slider(frame, 1)
    frame.locator(".map-note").first.filter(has_text="Map of step 0:").wait_for(timeout=WAIT)
    assert frame.locator(".slider .has-map").count() == 2  # of steps 0 and 30
    with page.expect_download() as download:
        frame.get_by_role("button", name="CSV").first.click()
    assert " random sequence step 0 " in download.value.suggested_filename
    assert frame.locator(".measured").first.inner_text() == "(of step 0)"  # role and importance
    assert re.fullmatch(r"0\.\d\d", frame.locator(".card", has_text="induction").locator("b").inner_text())


def test_the_losses_on_both_copies_are_curves(page: "Page", served: str, tiny_run: Path) -> None:
    frame = _open(page, served, run="real", step=12)
    card = frame.locator(".card", has_text="repeated sequence")
    copies = [scalars(tiny_run, f"scores/{copy}_copy_loss_nats") for copy in ("first", "second")]
    step = max(step for step in copies[0] if step <= 12)
    assert card.locator("b").inner_text() == ", ".join(f"{losses[step]:.2f}" for losses in copies)
    heights = [
        [float(point.split(",")[1]) for point in line.get_attribute("points").split()]
        for line in card.locator("polyline").all()
    ]
    low, high = min(min(copies[0].values()), min(copies[1].values())), max(max(c.values()) for c in copies)
    for drawn, losses in zip(heights, copies, strict=True):
        assert drawn == pytest.approx([27 - 24 * (loss - low) / (high - low) for loss in losses.values()], abs=0.01)


def test_a_curve_is_read_under_the_pointer_and_a_click_goes_to_its_step(page: "Page", served: str) -> None:
    frame = _open(page, served, run="real", layer=0, head=0)
    card = frame.locator(".card", has_text="previous token")
    first = wait_for_captures(served, "real", _text_tag(served), 4)[0]["scores"]["previous_token"][0][0]
    drawing = card.locator("svg")
    drawing.hover(position={"x": 4, "y": 10})
    assert card.locator("b").inner_text() == f"step 0: {first:.2f}"
    drawing.click(position={"x": 4, "y": 10})
    frame.locator(".step").first.filter(has_text="step 0 ").wait_for(timeout=WAIT)


def test_the_loss_is_drawn_behind_the_slider(page: "Page", served: str, tiny_run: Path) -> None:
    frame = _open(page, served, run="real", step=30)
    train, val = (scalars(tiny_run, f"loss/{name}_nats") for name in ("train", "val"))
    assert frame.locator(".losses").first.inner_text() == f"loss: train {train[30]:.2f} val {val[30]:.2f}"
    line = frame.locator(".slider polyline.train").first.get_attribute("points").split()
    assert len(line) == len(train)
    places = [float(point.split(",")[0]) for point in line]
    steps = [0, *(capture["step"] for capture in wait_for_captures(served, "real", _text_tag(served), 4))][1:]
    for step, place in zip(train, places, strict=True):  # captures are evenly spaced
        assert place == pytest.approx(np.interp(step, steps, np.linspace(0, 1, len(steps))), abs=1e-3)


def test_two_steps_are_compared_with_the_difference_of_maps_and_losses(page: "Page", served: str) -> None:
    frame = _open(page, served, run="real", layer=1, head=0, token=5)
    frame.get_by_label("compare with another step or run").check()
    frame.locator(".timeline.second .step").filter(has_text="step 0 ").wait_for(timeout=WAIT)
    assert "step 30 " in frame.locator(".step").first.inner_text()
    last, first = (wait_for_captures(served, "real", _text_tag(served), 4)[i]["predictions"]["losses"] for i in (-1, 0))
    expected = [0, *(10 * min(1, abs(late - early) / 6) for late, early in zip(last, first, strict=True))]
    _wait_for(page, lambda: _loss_bars(frame), lambda bars: bars == pytest.approx(expected, abs=0.02))
    one, other, difference = (_csv(page, frame, view) for view in range(3))
    assert one != other
    for query, row in enumerate(difference):
        for key in range(query + 1):
            assert row[key] == pytest.approx(one[query][key] - other[query][key], abs=2e-4)
    shades = frame.locator(".difference canvas.map").evaluate(
        """c => { const data = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            let [blue, orange] = [0, 0];
            for (let i = 0; i < data.length; i += 4) {
                blue += data[i + 2] > data[i] + 20;
                orange += data[i] > data[i + 2] + 20;
            }
            return [blue, orange]; }"""
    )
    assert min(shades) > 100  # attention weights rise somewhere and fall elsewhere


def test_two_runs_of_different_texts_are_compared_without_a_difference(page: "Page", served: str) -> None:
    frame = _open(page, served, run="real", compare=1)
    second = frame.locator(".timeline.second")
    second.locator("select").first.select_option("other_shape")
    frame.locator(".text-view.second .token").filter(has_text="script").wait_for(timeout=WAIT)
    page.wait_for_function("() => location.hash.includes('run2=other_shape')")
    frame.locator(".difference .note", has_text="The two texts differ.").wait_for(timeout=WAIT)
    assert not frame.locator(".difference canvas").is_visible()


def test_the_map_is_exported_as_image_and_numbers(page: "Page", served: str) -> None:
    frame = _open(page, served, run="other_shape", layer=1, head=2, step=5)
    labels = ["<start>", "<script>alert(1)</script>", "·c"]
    rows = _csv(page, frame, 0, labels)
    probe = Probe("text", (0, 1, 2), tuple(labels), ("",) * 3)
    expected = synthetic_capture(probe, layers=3, heads=5, seed=5).maps[1, 2]
    for query in range(3):
        assert rows[query][: query + 1] == pytest.approx(expected[query, : query + 1].tolist(), abs=0.004)
        assert rows[query][query + 1 :] == [None] * (2 - query)
    with page.expect_download() as download:
        frame.get_by_role("button", name="PNG").first.click()
    assert download.value.suggested_filename == "attention other_shape step 5 layer 1 head 2.png"
    image = Image.open(download.value.path())
    assert image.size == (1200, 1288)  # a title, a colour scale, and the map
    assert len(image.crop((0, 88, 1200, 1288)).convert("RGB").getcolors(2**20)) > 10


@pytest.mark.parametrize("size", [(1366, 596), (1100, 596), (1920, 900)], ids=str)
@pytest.mark.parametrize("run", ["real", "gpt2"])
def test_everything_is_visible_without_scrolling(page: "Page", served: str, run: str, size: tuple[int, int]) -> None:
    """1366 x 660 pixels of a window leave 596 below TensorBoard's header."""
    width, height = size
    page.set_viewport_size({"width": width, "height": height})
    frame = _open(page, served, run=run, sorted=1, layer=1, head=1)
    assert _overflow(page) == [0, 0]
    shown = [".slider", ".grid-box", ".tile[aria-pressed=true]", "canvas.map", ".strip", ".attention", ".cards"]
    boxes = {name: frame.locator(name).first.bounding_box() for name in shown}
    for name, box in boxes.items():
        assert box is not None, name
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= width, name
        if name != ".cards":  # their box scrolls
            assert box["y"] + box["height"] <= height, name
    assert boxes[".cards"]["y"] < height - 100
    assert boxes["canvas.map"]["width"] == boxes["canvas.map"]["height"] >= 300
    clipped = frame.locator(".tile .caption").evaluate_all(
        "captions => captions.filter(c => c.scrollWidth > c.clientWidth + 1 && c.clientWidth > 8).length"
    )
    assert clipped == 0
    before = _map_image(frame)
    frame.locator(".tile").nth(2).click()
    _wait_for(page, lambda: _map_image(frame), lambda image: image != before)


@pytest.mark.parametrize("size", [(1366, 596), (1920, 900)], ids=str)
def test_both_maps_and_their_difference_are_compared_side_by_side(
    page: "Page", served: str, size: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    frame = _open(page, served, run="real", compare=1, run2="real", step2=0)
    frame.locator(".difference .scale span").first.wait_for(timeout=WAIT)
    assert _overflow(page)[0] == 0
    boxes = [canvas.bounding_box() for canvas in frame.locator("canvas.map").all()]
    assert len(boxes) == 3
    assert len({box["y"] for box in boxes}) == 1
    assert all(one["x"] + one["width"] <= other["x"] for one, other in itertools.pairwise(boxes))
    assert min(box["width"] for box in boxes) >= 250
    for view in range(2):
        box = frame.locator(".strip").nth(view).bounding_box()
        assert box["y"] + box["height"] <= size[1]


@pytest.mark.parametrize("compare", [{}, {"compare": 1}], ids=["one view", "compare"])
@pytest.mark.parametrize("width", [390, 800])
def test_nothing_overlaps_or_leaves_a_narrow_screen(page: "Page", served: str, width: int, compare: dict) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    frame = _open(page, served, run="real", **compare)
    assert _overflow(page)[0] == 0
    boxes = [
        box
        for node in frame.locator("main > *").all()
        if node.is_visible() and (box := node.bounding_box()) and box["width"] and box["height"]
    ]
    assert len(boxes) >= 6
    for one, other in itertools.combinations(boxes, 2):
        apart = (
            one["x"] + one["width"] <= other["x"] + 1
            or other["x"] + other["width"] <= one["x"] + 1
            or one["y"] + one["height"] <= other["y"] + 1
            or other["y"] + other["height"] <= one["y"] + 1
        )
        assert apart, (one, other)


def _overflow(page: "Page") -> list[int]:
    """By how many pixels the page is larger than the window."""
    return page.evaluate(
        "() => { const root = document.documentElement;"
        " return [root.scrollWidth - innerWidth, root.scrollHeight - innerHeight]; }"
    )


def _csv(
    page: "Page", frame: "Page | FrameLocator", view: int, labels: list[str] | None = None
) -> list[list[float | None]]:
    """Save a map's numbers and read them: a row per query, None where the key is masked."""
    with page.expect_download() as download:
        frame.get_by_role("button", name="CSV").nth(view).click()
    header, *rows = csv.reader(download.value.path().read_text().splitlines())
    if labels:
        assert header[1:] == [row[0] for row in rows] == [f"{token} {label}" for token, label in enumerate(labels)]
    return [[float(cell) if cell else None for cell in row[1:]] for row in rows]


def _shown(value: float) -> str:
    return f"{value:.2f}".replace("-0.00", "0.00")


def _text_tag(address: str) -> str:
    """The series of the real run's text."""
    (tag,) = (tag for tag in wait_for_runs(address, {"real"})["real"] if "text" in tag)
    return tag


def test_500_captures_play(page: "Page", served: str) -> None:
    frame = _open(page, served, run="long", step=480)
    assert "(481 of 500)" in frame.locator(".step").first.inner_text()
    frame.get_by_role("button", name="play").first.click()
    frame.locator(".step").first.filter(has_text="(500 of 500)").wait_for(timeout=WAIT)
    frame.get_by_role("button", name="play").first.wait_for(timeout=WAIT)


def test_the_tab_is_dark_when_tensorboard_is(page: "Page", served: str) -> None:
    frame = _open(page, served, in_tensorboard=True, run="real")
    background = "b => getComputedStyle(b).backgroundColor"
    assert frame.locator("body").evaluate(background) == "rgb(255, 255, 255)"
    page.evaluate("document.body.classList.add('dark-mode')")
    _wait_for(page, lambda: frame.locator("body").evaluate(background), lambda now: now == "rgb(48, 48, 48)")


def test_the_losses_come_first_and_the_images_last_on_tensorboards_other_pages(page: "Page", served: str) -> None:
    page.set_viewport_size({"width": 1400, "height": 5000})  # only groups in view are drawn
    page.goto("about:blank")
    page.goto(f"{served}/#timeseries")
    groups = page.locator("metrics-card-group-toolbar .group-title")
    names = _wait_for(page, groups.all_inner_texts, lambda names: len(names) >= 5)
    assert names == ["loss", "optimizer", "scores", "speed", "thumbnails"]
    for tag in ("loss/train_nats", "loss/val_nats"):
        page.locator(f"card-view [title='{tag}']").first.wait_for(timeout=WAIT)
    page.goto("about:blank")
    page.goto(f"{served}/#text")
    steps = page.get_by_text(re.compile(r"step (12|24|30)"))
    texts = _wait_for(page, steps.all_inner_texts, lambda texts: len(texts) >= 3)
    assert {text.split()[1] for text in texts} == {"12", "24", "30"}


def test_a_run_that_diverged_is_drawn_beside_damaged_ones(page: "Page", tmp_path: Path) -> None:
    nan = gzip.compress(b'{"sink": [[NaN, NaN]], "entropy": [[NaN, Infinity]]}')
    write_run(tmp_path / "valid", [0], layers=3)
    write_series(tmp_path / "diverged", [[nan, gzip.compress(bytes(2 * 10))]])
    write_series(tmp_path / "damaged", [[b"junk"]])  # the latest one, with which the tab would begin
    with tensorboard(tmp_path) as address:
        wait_for_runs(address, {"valid", "diverged"})
        frame = _open(page, address)
        run = frame.locator(".timeline select").first
        assert run.evaluate("s => [...s.options].map(o => o.value)") == ["diverged", "valid"]
        assert frame.locator(".badge").first.inner_text() == "no clear role"
        run.select_option("valid")
        _wait_for(page, frame.locator(".tile").count, lambda count: count == 6)
        page.goto("about:blank")  # before the server stops


def test_new_captures_of_a_running_training_appear(browser: "Browser", page: "Page", tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder / "run", [0, 1])
    with tensorboard(folder) as address:
        wait_for_runs(address, {"run"})
        frame = _open(page, address)
        frame.locator(".step").first.filter(has_text="step 1 (2 of 2)").wait_for(timeout=WAIT)
        page.wait_for_timeout(1100)  # event file names have a resolution of one second
        write_run(folder / "run", [2, 3, 5])
        frame.locator(".step").first.filter(has_text="step 5 (5 of 5)").wait_for(timeout=WAIT)
        frame.get_by_label("previous capture").first.click()
        frame.locator(".step").first.filter(has_text="step 3 ").wait_for(timeout=WAIT)
        page.wait_for_timeout(1100)
        write_run(folder / "run", [8])
        frame.locator(".step").first.filter(has_text="(4 of 6)").wait_for(
            timeout=WAIT
        )  # the selected step does not change
        frame.get_by_label("follow latest").first.check()
        frame.locator(".step").first.filter(has_text="step 8 ").wait_for(timeout=WAIT)
        page.goto("about:blank")  # before the server stops
