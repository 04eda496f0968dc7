// The examples of requests. They name MODEL unless the settings name a model; if the models are listed for anybody, the
// first one is put in its place, so that an example can be executed as it is.

const PLACEHOLDER = '"MODEL"';

/** Return the text of the document with the first listed model in its examples. models: the URL of the list. */
export async function withListedModel(text, models) {
  if (!text.includes(PLACEHOLDER)) return text;
  try {
    const { data } = await (await fetch(models)).json();
    return text.replaceAll(PLACEHOLDER, JSON.stringify(data[0].id));
  } catch {
    return text; // a key is needed, or there is no model yet
  }
}
