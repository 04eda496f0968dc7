// Log probabilities for display: tokens grouped into whole characters, shades, and alternatives.

import { objects, text } from "./shapes.js";

/** The lower bound of the probability for each shade; values below all bounds get one more shade. */
export const SHADES = [0.9, 0.6, 0.3, 0.1];

/** Return the shade of a token, from 0 (nearly certain) to SHADES.length. */
export function shade(logprob) {
  const found = SHADES.findIndex((bound) => Math.exp(logprob) >= bound);
  return found < 0 ? SHADES.length : found;
}

/** Groups a stream's tokens until their bytes are whole characters: an emoji may need four tokens. */
export class Pieces {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #waiting = [];

  /** Add entries and return the pieces that they complete: `[{text, entries}, ...]`. */
  take(entries) {
    const pieces = [];
    for (const entry of entries) {
      this.#waiting.push(entry);
      const bytes = Array.isArray(entry.bytes) ? entry.bytes : null;
      const said = bytes ? this.#decoder.decode(Uint8Array.from(bytes), { stream: true }) : text(entry.token);
      if (said !== "" || bytes?.length === 0) {
        pieces.push({ text: said, entries: this.#waiting });
        this.#waiting = [];
      }
    }
    return pieces;
  }

  /** Return what is left at the end: an incomplete character, as the replacement character. */
  rest() {
    const entries = this.#waiting;
    this.#waiting = [];
    return entries.length > 0 ? [{ text: this.#decoder.decode(), entries }] : [];
  }
}

/** Return the most likely tokens, and the drawn one if it is not among them: `[{token, logprob, drawn}, ...]`. */
export function alternatives(entry) {
  const told = objects(entry.top_logprobs).map(({ token, logprob }) => ({ token, logprob, drawn: token === entry.token }));
  const own = { token: entry.token, logprob: entry.logprob, drawn: true };
  return told.some((one) => one.drawn) ? told : [...told, own];
}

const SPACES = { " ": "␣", "\n": "⏎", "\r": "␍", "\t": "⇥" };

/** Return a token with its spaces made visible. */
export const visible = (token) => text(token).replace(/[ \n\r\t]/g, (space) => SPACES[space]) || "∅";

/** Return a probability as text, from its logarithm; "?" if that is no number. */
export function percent(logprob) {
  if (!Number.isFinite(logprob)) return "?";
  const share = Math.exp(logprob) * 100;
  if (share >= 99.95) return "100 %";
  return share < 0.01 ? "< 0.01 %" : `${share.toFixed(share < 1 ? 2 : 1)} %`;
}
