"""Debian's Chromium, driven by Playwright: both are below .venvs, where tests/system/install.sh puts them."""

from __future__ import annotations

import base64
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.processes import ROOT
from tests.system.packages import installed
from tests.system.tools import needed

FOLDER = ROOT / ".venvs" / "chromium"
CHROMIUM = FOLDER / "usr" / "lib" / "chromium" / "chromium"
SCREENSHOTS = ROOT / "build" / "screenshots"

CONTRAST = """() => {
  for (const moving of document.getAnimations()) {
    if (moving.effect.getComputedTiming().endTime < Infinity) moving.finish(); // a color on its way to another
  }
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const over = (colors) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.matches("option, :disabled")) continue;
    const behind = [];
    for (let at = element; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const paper = light(over(behind));
    const ink = light(over([...behind, getComputedStyle(element).color]));
    const ratio = (Math.max(paper, ink) + 0.05) / (Math.min(paper, ink) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
"""Returns the elements whose text now has a contrast below 4.5 (WCAG 2.2, 1.4.3)."""

DIFFERENCE = """async (pictures) => {
  const [one, other] = await Promise.all(pictures.map(async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
    const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d", { willReadFrequently: true });
    canvas.drawImage(image, 0, 0);
    return canvas.getImageData(0, 0, image.width, image.height);
  }));
  if (one.width !== other.width || one.height !== other.height) return 255;
  return one.data.reduce((most, value, at) => Math.max(most, Math.abs(value - other.data[at])), 0);
}"""


@contextmanager
def chromium() -> Iterator[Any]:
    """Give a running browser, as Playwright's `Browser`; as root without a sandbox, which it would refuse to use."""
    sys.path.append(str(installed("playwright")))  # after nproxy's own packages
    sync_playwright = importlib.import_module("playwright.sync_api").sync_playwright
    libraries = [*FOLDER.glob("usr/lib/*-linux-*"), *FOLDER.glob("usr/lib/*-linux-*/pulseaudio")]
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
        "NO_PROXY": "*",
    }
    if (fonts := FOLDER / "etc" / "fonts").is_dir():  # this system has no fonts of its own
        environment |= {"FONTCONFIG_PATH": str(fonts), "XDG_DATA_HOME": str(FOLDER / "usr" / "share")}
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=needed(CHROMIUM), env=environment, args=args)
        try:
            yield browser
        finally:
            browser.close()


def difference(page: Any, one: bytes, other: bytes) -> int:
    """Return the largest difference of a color value between two screenshots (PNG), of 255; 255 if their sizes differ.

    Chromium need not draw the same twice: the edge of a rounded corner comes out a step lighter or darker.
    """
    found: int = page.evaluate(DIFFERENCE, [base64.b64encode(png).decode() for png in (one, other)])
    return found


def picture(page: Any, name: str, **options: Any) -> Path:
    """Save a screenshot of the page, to be looked at; returns its path."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=str(path), **options)
    return path
