// One request and its n choices: chunks go in, and the page reads what to show. Times are milliseconds of one clock.

import { objects, text } from "./shapes.js";

/** Return the state of a request for n choices that was just sent. */
export function begin(n, now) {
  const choices = Array.from({ length: n }, (_, index) => ({
    index,
    text: "",
    reasoning: "",
    calls: [], // tool calls: {index, name, arguments}
    entries: [], // log probabilities, one per token
    counted: 0, // the number of tokens with log probabilities
    pieces: 0, // chunks with text, reasoning, a piece of a tool call or log probabilities
    finish: null,
    error: null,
    first: null,
    last: null,
  }));
  return { choices, usage: null, started: now, ended: null, answered: {}, state: "waiting" };
}

/** Add a chunk that arrived at `now`. */
export function take(run, chunk, now) {
  run.state = "streaming";
  if (chunk.usage) run.usage = chunk.usage;
  for (const said of objects(chunk.choices)) {
    const choice = run.choices[said.index];
    if (choice !== undefined) takeChoice(choice, said, now);
  }
}

function takeChoice(choice, said, now) {
  const delta = said.delta ?? {};
  const [content, thought] = contentOf(delta.content);
  const answer = content + text(delta.refusal);
  const reasoning = (text(delta.reasoning_content) || text(delta.reasoning)) + thought;
  const calls = objects(delta.tool_calls);
  const entries = objects(said.logprobs?.content);
  if (answer || reasoning || calls.length > 0 || entries.length > 0) {
    choice.first ??= now;
    choice.last = now;
    choice.pieces += 1;
  }
  choice.text += answer;
  choice.reasoning += reasoning;
  for (const call of calls) takeCall(choice.calls, call);
  choice.entries.push(...entries);
  choice.counted += entries.length;
  choice.finish = text(said.finish_reason) || choice.finish;
  choice.error = text(said.error?.message) || choice.error;
}

/** Return the text and the reasoning of a message's content: a string, or parts as Mistral's models of reasoning write. */
function contentOf(content) {
  const joined = (parts) => (Array.isArray(parts) ? objects(parts).map((part) => text(part.text)).join("") : text(parts));
  return [joined(content), objects(content).map((part) => joined(part.thinking)).join("")];
}

/** Add a piece of a tool call to the calls of its choice. */
function takeCall(calls, { index, function: named, custom }) {
  const { name, arguments: args = custom?.input } = named ?? custom ?? {};
  let call = calls.find((one) => one.index === index);
  if (call === undefined) calls.push((call = { index, name: "", arguments: "" }));
  call.name ||= text(name);
  call.arguments += text(args);
}

/** End the run as "done", "stopped" or "failed". */
export function end(run, state, now) {
  run.state = state;
  run.ended = now;
}

/** Return a run as it is kept: without log probabilities, which are larger than everything else. */
export const kept = (run) => ({ ...run, choices: run.choices.map((choice) => ({ ...choice, entries: [] })) });

/**
 * Return how many tokens a choice has, and whether that number is exact. The usage counts all choices together. For one
 * of several choices, log probabilities are counted, or else its pieces: servers send about one token in each.
 */
export function tokens(run, choice) {
  if (run.usage && run.choices.length === 1) return { count: run.usage.completion_tokens, exact: true };
  if (choice.counted > 0) return { count: choice.counted, exact: true };
  return { count: choice.pieces, exact: choice.pieces === 0 };
}

/** Return a choice's tokens per second, from its first to its last; null if that time is too short to tell. */
export function speed(run, choice) {
  const { count } = tokens(run, choice);
  const seconds = (choice.last - choice.first) / 1000;
  return count > 1 && seconds >= 0.1 ? (count - 1) / seconds : null;
}

/** Return the tokens of all choices, and tokens per second from the request to its end or to `now`. */
export function total(run, now) {
  const counted = run.choices.map((choice) => tokens(run, choice));
  const count = run.usage?.completion_tokens ?? counted.reduce((sum, one) => sum + one.count, 0);
  const exact = run.usage !== null || counted.every((one) => one.exact);
  const seconds = ((run.ended ?? now) - run.started) / 1000;
  return { count, exact, seconds, speed: seconds > 0 ? count / seconds : 0 };
}

/** Return a count with its word, such as "1 token". */
export const quantity = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
