// One request and its n choices: chunks go in, and what is shown is read off. Times are milliseconds of one clock.

/** A request that was just sent, for so many choices. */
export function begin(n, now) {
  const choices = Array.from({ length: n }, (_, index) => ({
    index,
    text: "",
    reasoning: "",
    entries: [], // log probabilities, one for each token
    counted: 0, // how many there were
    pieces: 0, // chunks that said something
    finish: null,
    error: null,
    first: null,
    last: null,
  }));
  return { choices, usage: null, started: now, ended: null, answered: {}, state: "waiting" };
}

/** Take a chunk that came at `now`. */
export function take(run, chunk, now) {
  run.state = "streaming";
  if (chunk.usage) run.usage = chunk.usage;
  for (const said of chunk.choices ?? []) {
    const choice = run.choices[said.index];
    if (choice !== undefined) takeChoice(choice, said, now);
  }
}

function takeChoice(choice, said, now) {
  const delta = said.delta ?? {};
  const text = (delta.content ?? "") + (delta.refusal ?? "");
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  const entries = said.logprobs?.content ?? [];
  if (text || reasoning || entries.length > 0) {
    choice.first ??= now;
    choice.last = now;
    choice.pieces += 1;
  }
  choice.text += text;
  choice.reasoning += reasoning;
  choice.entries.push(...entries);
  choice.counted += entries.length;
  choice.finish = said.finish_reason ?? choice.finish;
  choice.error = said.error?.message ?? choice.error;
}

/** It is over: "done", "stopped" or "failed". */
export function end(run, state, now) {
  run.state = state;
  run.ended = now;
}

/** A run to keep: without log probabilities, which are longer than all else. */
export const kept = (run) => ({ ...run, choices: run.choices.map((choice) => ({ ...choice, entries: [] })) });

/**
 * How many tokens a choice has, and whether that is exact. The wire counts those of all choices together; of one choice
 * they are counted by its log probabilities, else by its pieces, which servers send by the token or nearly so.
 */
export function tokens(run, choice) {
  if (run.usage && run.choices.length === 1) return { count: run.usage.completion_tokens, exact: true };
  if (choice.counted > 0) return { count: choice.counted, exact: true };
  return { count: choice.pieces, exact: choice.pieces === 0 };
}

/** Tokens per second of a choice, from its first to its last; null while that is too short to say. */
export function speed(run, choice) {
  const { count } = tokens(run, choice);
  const seconds = (choice.last - choice.first) / 1000;
  return count > 1 && seconds >= 0.1 ? (count - 1) / seconds : null;
}

/** What all choices came to: tokens, and tokens per second from the request to its end or `now`. */
export function total(run, now) {
  const counted = run.choices.map((choice) => tokens(run, choice));
  const count = run.usage?.completion_tokens ?? counted.reduce((sum, one) => sum + one.count, 0);
  const exact = run.usage !== null || counted.every((one) => one.exact);
  const seconds = ((run.ended ?? now) - run.started) / 1000;
  return { count, exact, seconds, speed: seconds > 0 ? count / seconds : 0 };
}
