// What can go wrong with a request, in words for the user.

const TITLES = {
  400: "The request was refused",
  401: "A valid key is needed",
  403: "This key may not do that",
  404: "There is no such thing here",
  413: "The request is too long",
  429: "Too much is asked for at the moment",
  500: "The server failed",
  502: "The upstream failed",
  503: "Nothing can answer now",
  504: "The upstream took too long",
};

/** A request without a complete answer. `param` is the name of the field at fault, or null. */
export class Failure extends Error {
  constructor(title, message, { status = 0, code = null, param = null, requestId = null } = {}) {
    super(message);
    Object.assign(this, { title, status, code, param, requestId });
  }
}

const FOR_PROGRAMS = / Send it in the header '.*'\.$/; // here it is typed into a field

/** An HTTP error status. `text` is the body: OpenAI's error envelope, unless something other than nproxy answered. */
export function refusal(status, text, headers) {
  const error = inside(text);
  const wait = headers.get("retry-after");
  const message = [error.message?.replace(FOR_PROGRAMS, "") ?? `The answer has the status ${status} and says no more.`];
  if (wait !== null && /^\d+$/.test(wait)) message.push(`It may be tried again in ${wait} s.`);
  return new Failure(TITLES[status] ?? `The answer has the status ${status}`, message.join(" "), {
    status,
    code: error.code ?? null,
    param: error.param ?? null,
    requestId: headers.get("x-request-id"),
  });
}

/** An error event in a stream: what is shown so far stays, and nothing more comes. */
export function brokenOff(error, requestId) {
  const message = typeof error?.message === "string" ? error.message : "It does not say why.";
  return new Failure("The stream ended with an error", message, { code: error?.code ?? null, requestId });
}

/** A key with characters that a header cannot carry; nothing was sent. */
export function unsendable() {
  const message = "A key has no spaces, and no letters but those from A to Z, digits and signs.";
  return new Failure("A valid key is needed", message, { status: 401 });
}

/** The connection could not be opened. */
export function unreachable() {
  return new Failure("The gateway cannot be reached", "Is it running, and is this page still from where it listens?");
}

/** The connection broke during the answer. */
export function cut(requestId) {
  const message = "The connection was cut before the answer was complete.";
  return new Failure("The answer is not complete", message, { requestId });
}

/** The stream ended without [DONE]. */
export function unfinished(requestId) {
  const message = "The stream ended without [DONE], so what is shown may lack its end.";
  return new Failure("The answer is not complete", message, { requestId });
}

/** The answer is not what was asked for, for example a proxy's page. */
export function unreadable(what, wanted, requestId) {
  return new Failure("The answer cannot be read", `${what} came instead of ${wanted}.`, { requestId });
}

function inside(text) {
  try {
    const { error } = JSON.parse(text);
    return typeof error?.message === "string" ? error : {};
  } catch {
    return {};
  }
}
