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
        page = browser.new_page(viewport={"width": 1360, "height": 1250})
        _open(page, f"{address}/", HEAD | {"step": 720})
        _save(page.screenshot(), "attention_tab")
        alone = f"{address}/data/plugin_entry.html?name=attention"
        _open(page, alone, HEAD | {"step": 720, "compare": 1, "run2": "quickstart", "step2": 146})
        _save_panels(page, "attention_tab_compared")
        view = {"run": "induction", "layer": 1, "head": 0, "token": 50, "probe": random, "probe2": random}
        _open(page, alone, view | {"step": 1482, "compare": 1, "run2": "induction", "step2": 1790})
        _save_panels(page, "induction")
        page.goto("about:blank")
        browser.close()


def _save_panels(page: Page, name: str) -> None:
    """Save both views side by side."""
    panels = page.locator("section.panel")
    first, second = panels.nth(0).bounding_box(), panels.nth(1).bounding_box()
    assert first is not None
    assert second is not None
    width = second["x"] + second["width"] - first["x"]
    clip = {"x": first["x"], "y": first["y"], "width": width, "height": first["height"]}
    _save(page.screenshot(clip=clip, full_page=True), name)


def _open(page: Page, address: str, view: dict[str, Any]) -> None:
    page.goto("about:blank")
    page.goto(f"{address}#attention&" + "&".join(f"p.attention.{name}={value}" for name, value in view.items()))
    page.wait_for_timeout(5000)


def _save(png: bytes, name: str) -> None:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        IMAGES / f"{name}.png", optimize=True
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
