// Tokens shaded by their probability, and a table of alternatives for the token under the pointer or with the focus.

import { SHADES, alternatives, percent, shade, visible } from "./tokens.js";

const of = new WeakMap(); // the log probability entries of each token element

/** Return a piece of text as an element that can be hovered and focused. */
export function token(piece) {
  const element = document.createElement("span");
  element.className = `token ${shadeOf(piece.entries)}`;
  element.tabIndex = -1;
  element.textContent = piece.text;
  of.set(element, piece.entries);
  return element;
}

/** Return the class of the least likely entry; none if a server left out a number. */
function shadeOf(entries) {
  const logprobs = entries.map((entry) => entry.logprob);
  return logprobs.every(Number.isFinite) ? `shade-${shade(Math.min(...logprobs))}` : "";
}

/** Return elements that explain the shades. */
export function legend() {
  const bounds = SHADES.map((bound) => `≥ ${bound * 100} %`);
  return [...bounds, `< ${SHADES.at(-1) * 100} %`].map((text, index) => {
    const sample = document.createElement("span");
    sample.className = `token shade-${index}`;
    sample.textContent = text;
    return sample;
  });
}

/** The table of alternatives. The page has one; it follows pointer and focus in `area`. */
export class Tip {
  #element;
  #owner = null;

  constructor(element, area) {
    this.#element = element;
    for (const event of ["pointerover", "focusin"]) area.addEventListener(event, ({ target }) => this.#at(target));
    for (const event of ["pointerleave", "focusout"]) area.addEventListener(event, () => this.hide());
    area.addEventListener("keydown", walk);
    document.addEventListener("scroll", () => this.#place(), { capture: true, passive: true });
  }

  get shown() {
    return this.#owner !== null;
  }

  hide() {
    this.#owner?.removeAttribute("aria-describedby");
    this.#owner = null;
    this.#element.hidden = true;
  }

  #at(target) {
    const entries = of.get(target);
    if (entries === undefined) return this.hide();
    if (target === this.#owner) return;
    this.hide();
    this.#owner = target;
    target.setAttribute("aria-describedby", this.#element.id);
    this.#element.replaceChildren(...entries.map(table));
    this.#element.hidden = false;
    this.#place();
  }

  /** Place the table below the token, or above it if there is no room; never outside the window. */
  #place() {
    if (this.#owner === null) return;
    const token = this.#owner.getClientRects()[0] ?? this.#owner.getBoundingClientRect(); // it may span two lines
    const { width, height } = this.#element.getBoundingClientRect();
    const gap = 6;
    const below = token.bottom + gap + height <= innerHeight;
    const left = Math.max(gap, Math.min(token.left, document.documentElement.clientWidth - width - gap));
    this.#element.style.left = `${left}px`;
    this.#element.style.top = `${below ? token.bottom + gap : Math.max(gap, token.top - gap - height)}px`;
  }
}

/** Move between tokens with the arrow keys: each text is one tab stop. */
function walk(event) {
  const to = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  const next = of.has(event.target) && to ? event.target[to] : null;
  if (!next) return;
  event.preventDefault();
  for (const stop of event.target.parentElement.querySelectorAll("[tabindex='0']")) stop.tabIndex = -1; // after a click, another
  next.tabIndex = 0;
  next.focus();
}

function table(entry) {
  const made = document.createElement("table");
  const name = document.createElement("bdi"); // the numbers behind it do not take part in its direction
  name.textContent = visible(entry.token);
  const log = Number.isFinite(entry.logprob) ? `  (log ${entry.logprob.toFixed(3)})` : "";
  made.createCaption().append(name, `  ${percent(entry.logprob)}${log}`);
  for (const { token, logprob, drawn } of alternatives(entry)) {
    const row = made.insertRow();
    row.className = drawn ? "drawn" : "";
    row.insertCell().textContent = visible(token);
    const bar = document.createElement("span");
    bar.className = "share";
    bar.style.width = `${Math.exp(logprob) * 100}%`;
    row.insertCell().append(bar);
    row.insertCell().textContent = percent(logprob);
  }
  return made;
}
