"""What is wrong with the page that a browser shows: each function lists faults in words, none for a good page."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.pages.browser import Browser, Message

LEAST_CONTRAST = 4.5
LEAST_TEXT_PX = 11.5

PROBE = """
(() => {
  const isShown = element => element.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const ownText = element => [...element.childNodes].filter(node => node.nodeType === 3 && node.data.trim());
  const shape = node => { const range = document.createRange(); range.selectNodeContents(node); return range.getBoundingClientRect(); };
  const parse = colour => { const parts = colour.match(/[0-9.]+/g).map(Number); return {rgb: parts.slice(0, 3), alpha: parts[3] ?? 1}; };
  const light = rgb => rgb.map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const paper = element => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.alpha === 1) return colour.rgb;
    }
    return [255, 255, 255];
  };
  const contrast = element => {
    const [dark, bright] = [light(parse(getComputedStyle(element).color).rgb), light(paper(element))].sort((one, other) => one - other);
    return (bright + 0.05) / (dark + 0.05);
  };
  const texts = [...document.body.querySelectorAll('*')].filter(isShown).flatMap(element => ownText(element).map(node => {
    const {left, right, height} = shape(node);
    return {tag: element.localName, text: node.data.trim().slice(0, 60), left, right, height,
            size: parseFloat(getComputedStyle(element).fontSize), contrast: contrast(element)};
  }));
  const pictures = [...document.images].filter(isShown).map(image => {
    const {left, right, width, height} = image.getBoundingClientRect();
    return {left, right, width, height, isLoaded: image.complete && image.naturalWidth > 0};
  });
  const cut = [...document.body.querySelectorAll('*')].filter(isShown).filter(element =>
    getComputedStyle(element).overflowX !== 'visible' && element.scrollWidth > element.clientWidth + 1).map(element => element.localName);
  return {width: innerWidth, page: document.scrollingElement.scrollWidth, paper: light(paper(document.body)), texts, pictures, cut};
})()
"""

STRUCTURE = """
({
  language: document.documentElement.lang,
  title: document.title,
  pictures: document.images.length,
  nameless: [...document.querySelectorAll('img')].filter(image => !image.alt).length,
  unscoped: [...document.querySelectorAll('th')].filter(head => !head.scope || !head.textContent.trim()).length,
  headless: [...document.querySelectorAll('table:not([role=presentation])')].filter(table => !table.querySelector('th')).length,
  unreached: [...document.querySelectorAll('*')].filter(element => getComputedStyle(element).overflowX === 'auto'
    && !(element.tabIndex === 0 && element.getAttribute('aria-label'))).length,
})
"""


def probe(browser: Browser) -> dict[str, Any]:
    """Return measures of what is shown: lengths in pixels of CSS, contrast as a ratio, brightness from 0 to 1."""
    found: dict[str, Any] = browser.evaluate(PROBE)
    return found


def find_loading_faults(browser: Browser, address: str) -> Iterator[str]:
    """Yield what the page asked for beside itself, and what the browser complained of since it was opened."""
    for event in browser.find_events("Network.requestWillBeSent"):
        url = event["request"]["url"]
        if url != address and not url.startswith("data:"):
            yield f"asks for {url}"
    for event in browser.find_events("Log.entryAdded"):
        yield f"says {event['entry']['text']}"
    for event in browser.find_events("Runtime.consoleAPICalled"):
        yield f"says {event['args']}"
    for event in browser.find_events("Runtime.exceptionThrown"):
        yield f"fails with {event['exceptionDetails']['text']}"


def find_layout_faults(browser: Browser, width: int) -> Iterator[str]:
    """Yield what is lost, or has to be scrolled to, when the window is so wide."""
    found = probe(browser)
    if found["width"] != width or found["page"] > width:
        yield f"the page is {found['page']} wide, in a window of {found['width']}"
    for text in found["texts"]:
        if text["left"] < 0 or text["right"] > width + 0.5:
            yield f"{text['tag']} {text['text']!r} goes from {text['left']} to {text['right']}"
        if text["size"] < LEAST_TEXT_PX or not text["height"]:
            yield f"{text['tag']} {text['text']!r} is only {text['size']} large"
    for picture in found["pictures"]:
        if (
            not picture["isLoaded"]
            or min(picture["width"], picture["height"]) < 32
            or picture["right"] > width + 0.5
        ):
            yield f"a picture is not as it should be: {picture}"
    yield from (f"a {name} is wider than there is room" for name in found["cut"])


def find_colour_faults(browser: Browser, *, is_dark: bool) -> Iterator[str]:
    """Yield text that is hard to read, and a background that is not as asked for."""
    found = probe(browser)
    if (found["paper"] < 0.5) is not is_dark:
        yield f"the background has a brightness of {found['paper']:.2f}"
    for text in found["texts"]:
        if text["contrast"] < LEAST_CONTRAST:
            yield f"{text['tag']} {text['text']!r} has a contrast of {text['contrast']:.1f}"


def find_reading_faults(browser: Browser) -> Iterator[str]:
    """Yield what a screen reader cannot tell."""
    found = browser.evaluate(STRUCTURE)
    for name in ("language", "title"):
        if not found[name]:
            yield f"no {name}"
    for name in ("nameless", "unscoped", "headless", "unreached"):
        if found[name]:
            yield f"{found[name]} {name}"
    nodes = [node for node in browser.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    for role in ("main", "contentinfo"):
        if (count := len(list_names(nodes, role))) != 1:
            yield f"{count} parts are {role}"
    if not all(list_names(nodes, "image")) or len(list_names(nodes, "image")) != found["pictures"]:
        yield "pictures without a name"
    yield from find_heading_faults(nodes)


def find_heading_faults(nodes: list[Message]) -> Iterator[str]:
    """Yield headings that are out of order."""
    levels = [
        entry["value"]["value"]
        for node in nodes
        if node["role"]["value"] == "heading"
        for entry in node["properties"]
        if entry["name"] == "level"
    ]
    if levels[:1] != [1] or levels.count(1) > 1:
        yield "there is not one heading above all others"
    if any(after > before + 1 for before, after in pairwise(levels)):
        yield f"headings skip a level: {levels}"


def list_names(nodes: list[Message], role: str) -> list[str]:
    """Return the names of all parts of the page that have a role."""
    return [node.get("name", {}).get("value", "") for node in nodes if node["role"]["value"] == role]
