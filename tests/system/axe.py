"""axe-core: finds in a page what people with a keyboard, a screen reader or a finger cannot use."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.system.tools import NODE_SCRIPTS, needed

AXE = NODE_SCRIPTS / "node_modules" / "axe-core" / "axe.min.js"

RUN = """async () => {
  for (const moving of document.getAnimations()) {
    if (moving.effect.getComputedTiming().endTime < Infinity) moving.finish(); // a color on its way to another
  }
  const { violations } = await axe.run(document, {
    resultTypes: ["violations"],
    rules: { "target-size": { enabled: true } }, // WCAG 2.2, 2.5.8; off by default
  });
  return violations.flatMap(({ id, nodes }) => nodes.map(({ target }) => [id, target.join(" ")]));
}"""


def found(page: Any, *, but: Collection[str] = ()) -> list[tuple[str, str]]:
    """Return what axe-core finds in the page as it is now: `(rule, selector)`, without the rules in `but`."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(f"{Path(needed(AXE)).read_text()};null")
    return [(rule, place) for rule, place in page.evaluate(RUN) if rule not in but]
