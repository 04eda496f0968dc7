// Prints what "copy as" returns for the requests on standard input; test_copies.py lets a shell and Python parse it.

import { curl, python } from "../../../nproxy/gateway/pages/playground/snippets.js";

const input = await new Response(process.stdin).json();
const written = input.map((body) => ({
  curl: curl(body, "http://h/v1", false),
  keyed_curl: curl(body, "http://h/v1", true),
  python: python(body, "http://h/v1", false),
  keyed_python: python(body, "http://h/v1", true),
}));
console.log(JSON.stringify(written));
