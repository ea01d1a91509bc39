"""Take the images of the Attention tab in docs/images: python -m tests.screenshots checkpoints.

Needs Chromium and finished runs named quickstart and induction.
"""

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.conftest import chromium
from tests.serving import tensorboard, wait_for_runs

IMAGES = Path(__file__).parent.parent / "docs" / "images"
HEAD = {"run": "quickstart", "layer": 0, "head": 1, "token": 35}


def main(logdir: Path) -> None:
    """Take all images."""
    with tensorboard(logdir) as address, sync_playwright() as playwright:
        series = wait_for_runs(address, {"quickstart", "induction"})["induction"]
        random = next(tag for tag in series if "random" in tag)
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1366, "height": 660})
        _open(page, f"{address}/", HEAD | {"step": 720})
        _save(_image(page), "attention_tab")
        alone = f"{address}/data/plugin_entry.html?name=attention"
        page.set_viewport_size({"width": 1366, "height": 720})
        _open(page, alone, HEAD | {"step": 720, "compare": 1, "run2": "quickstart", "step2": 146})
        _save(_image(page), "attention_tab_compared")
        page.set_viewport_size({"width": 1366, "height": 800})
        view = {"run": "induction", "token": 50, "probe": random, "probe2": random, "run2": "induction"}
        view |= {"step": 1790, "compare": 1, "step2": 1482}
        _open(page, alone, view | {"layer": 1, "head": 0})
        induction = _image(page)
        _open(page, alone, view | {"layer": 0, "head": 0})
        maps = page.locator(".map-panel")
        boxes = [box for box in (maps.nth(view).bounding_box() for view in (0, 2)) if box]
        bottom = int(boxes[0]["y"] + boxes[0]["height"]) + 8
        both = Image.new("RGB", (induction.width, induction.height + bottom - int(boxes[0]["y"])), "white")
        both.paste(_image(page).crop((0, 0, induction.width, bottom)), (0, 0))
        both.paste(induction.crop((0, int(boxes[0]["y"]), *induction.size)), (0, bottom))
        _save(both, "induction")
        page.goto("about:blank")
        browser.close()


def _image(page: Page) -> Image.Image:
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def _open(page: Page, address: str, view: dict[str, Any]) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#attention&" + "&".join(f"p.attention.{name}={value}" for name, value in view.items()))
    page.wait_for_timeout(5000)


def _save(image: Image.Image, name: str) -> None:
    image.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
