// All requests to the gateway are made here.

import { brokenOff, cut, refusal, unfinished, unreachable, unreadable, unsendable } from "./failures.js";
import { EventReader } from "./sse.js";

/** Return the URL of an API path. It is relative to the page, so that it also works below a proxy's path. */
export const api = (path) => new URL(`v1/${path}`, document.baseURI);

/** Return whether the page at this path is enabled. */
export const shown = (path) => fetch(new URL(path, document.baseURI), { method: "HEAD" }).then(({ ok }) => ok, () => false);

const STREAM = "a stream of chunks";
const SENDABLE = /^[\x21-\x7e]*$/; // keys that a header can carry (RFC 6750, section 2.1, and a little more)

function headersFor(key) {
  if (!SENDABLE.test(key)) throw unsendable();
  return key ? { authorization: `Bearer ${key}` } : {};
}

/** Return the ids of the models that this key may use. Throws Failure. */
export async function listModels(key) {
  const answer = await reach(api("models"), { headers: headersFor(key) });
  try {
    return (await answer.json()).data.map((model) => model.id);
  } catch {
    throw unreadable("Something else", "a list of models", answer.headers.get("x-request-id"));
  }
}

/**
 * Request a streamed chat completion: yields `{headers}` when it begins, then each chunk as it arrives.
 *
 * Returns only after [DONE]; throws Failure for every other end, and AbortError if `signal` aborts it.
 */
export async function* ask(body, key, signal) {
  const headers = { "content-type": "application/json", ...headersFor(key) };
  const answer = await reach(api("chat/completions"), { method: "POST", headers, body: JSON.stringify(body), signal });
  const requestId = answer.headers.get("x-request-id");
  const type = answer.headers.get("content-type") ?? "Something without a type";
  if (!type.startsWith("text/event-stream")) throw unreadable(type, STREAM, requestId);
  yield { headers: answer.headers };
  const pieces = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  try {
    for (let piece = await next(pieces, requestId); !piece.done; piece = await next(pieces, requestId)) {
      for (const data of events.read(piece.value)) {
        if (data === "[DONE]") return;
        yield parsed(data, requestId);
      }
    }
  } finally {
    pieces.cancel().catch(() => {}); // the stream may have ended already
  }
  throw unfinished(requestId);
}

async function reach(url, options) {
  let answer;
  try {
    answer = await fetch(url, options);
  } catch (error) {
    throw error.name === "AbortError" ? error : unreachable();
  }
  if (!answer.ok) throw refusal(answer.status, await answer.text().catch(() => ""), answer.headers);
  return answer;
}

async function next(pieces, requestId) {
  try {
    return await pieces.read();
  } catch (error) {
    throw error.name === "AbortError" ? error : cut(requestId);
  }
}

function parsed(data, requestId) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw unreadable("Something that is not JSON", STREAM, requestId);
  }
  if (typeof chunk !== "object" || chunk === null) throw unreadable("Something that is no chunk", STREAM, requestId);
  if (chunk.error) throw brokenOff(chunk.error, requestId);
  return chunk;
}
