// The form's values as the request that they mean. A value is the text of its field; an empty one is not sent.

/** The most choices that the page shows side by side. */
export const MOST_CHOICES = 16;

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"];

/** What may differ between choices, of all that the API's `choice_params` takes. */
export const EACH = ["temperature", "top_p", "max_tokens", "seed"];

/** What stands in the form when nothing is known of the visitor. */
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

/** The body of a request for a whole answer; `streaming` makes it one for a stream. */
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

/** The same request, to be answered as a stream that ends with its usage. */
export const streaming = (body) => ({ ...body, stream: true, stream_options: { include_usage: true } });

/** What each of the n choices has of its own. */
export const overrides = (values) =>
  Array.from({ length: Math.min(Number(values.n), MOST_CHOICES) }, (_, index) => numbers(values.each[index] ?? {}, EACH));

function numbers(values, names) {
  const said = names.filter((name) => values[name]); // texts: "0" is said
  return Object.fromEntries(said.map((name) => [name, Number(values[name])]));
}
