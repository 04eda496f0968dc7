// Turns the form's values into a request. A value is the text of its field; an empty value is not sent.

/** The most choices that the page shows side by side. */
export const MOST_CHOICES = 16;

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

/** The settings that may differ between choices here, a part of what the API's `choice_params` accepts. */
export const EACH = ["temperature", "top_p", "max_tokens", "seed"];

/** The form's values for a new visitor. */
export const DEFAULTS = {
  model: "",
  system: "",
  prompt: "Name a color and say why you like it.",
  n: "4",
  temperature: "0.7",
  top_p: "0.9",
  max_tokens: "120",
  seed: "",
  logprobs: true,
  top_logprobs: "5",
  each: [],
};

/** Return the body of a request that is not streamed; `streaming` turns it into a streamed one. */
export function bodyOf(values) {
  const { system, prompt } = values;
  const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
  const n = Number(values.n);
  const body = { model: values.model, messages, n, ...numbers(values, NUMBERS) };
  if (values.logprobs) Object.assign(body, { logprobs: true, top_logprobs: Number(values.top_logprobs || 0) });
  const each = overrides(values);
  if (each.some((one) => Object.keys(one).length > 0)) body.choice_params = each;
  return body;
}

/** Return the same request as a streamed one that ends with its usage. */
export const streaming = (body) => ({ ...body, stream: true, stream_options: { include_usage: true } });

/** Return the settings of each of the n choices that differ from the request's. */
export const overrides = (values) =>
  Array.from({ length: Math.min(Number(values.n), MOST_CHOICES) }, (_, index) => numbers(values.each[index] ?? {}, EACH));

function numbers(values, names) {
  const said = names.filter((name) => values[name]); // values are texts, so "0" counts as set
  return Object.fromEntries(said.map((name) => [name, Number(values[name])]));
}
