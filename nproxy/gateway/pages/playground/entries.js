// Checks of history entries before they are used: other pages of this origin can write to the storage too.

import { EACH } from "./request.js";

const text = (value) => typeof value === "string";
const number = (value) => Number.isFinite(value);
const orNull = (check) => (value) => value === null || check(value);
const orNone = (check) => (value) => value === undefined || check(value);
const listOf = (check) => (value) => Array.isArray(value) && value.every(check);
const shape = (fields) => (value) =>
  typeof value === "object" && value !== null && Object.entries(fields).every(([name, check]) => check(value[name]));

const TEXTS = ["model", "system", "prompt", "n", "temperature", "top_p", "max_tokens", "seed", "top_logprobs"];

const isEach = shape(Object.fromEntries(EACH.map((name) => [name, orNone(text)])));
const isChoice = shape({
  text,
  reasoning: text,
  calls: listOf(shape({ name: text, arguments: text })),
  entries: listOf(() => false), // must be empty: log probabilities are not kept
  counted: number,
  pieces: number,
  finish: orNull(text),
  error: orNull(text),
  first: orNull(number),
  last: orNull(number),
});
const isRun = shape({
  choices: listOf(isChoice),
  usage: orNull(shape({ prompt_tokens: number, completion_tokens: number })),
  started: number,
  ended: number,
  answered: shape({ mode: orNone(orNull(text)), upstream: orNone(orNull(text)), legs: orNone(orNull(text)) }),
  state: text,
});

/** Return whether these are values that the form can show. */
export const isValues = shape({
  ...Object.fromEntries(TEXTS.map((name) => [name, text])),
  logprobs: (value) => typeof value === "boolean",
  each: listOf(isEach),
});

/** Return whether this is an entry as the page writes it: `{at, values, run}`, with as many choices as n. */
export const isEntry = (value) =>
  shape({ at: number, values: isValues, run: isRun })(value) && value.run.choices.length === Number(value.values.n);
