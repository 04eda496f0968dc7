// A request as code to paste. The key is never in it: the code reads it from the environment.

const KEY = "NPROXY_API_KEY";
const LONGEST = 131_071; // bytes of one argument on Linux (MAX_ARG_STRLEN), without its terminating NUL

/**
 * Return the request as a command for a POSIX shell. `v1`: the API's base URL; `keyed`: whether a key is sent. A body
 * that is too long for an argument goes through standard input, without "!", which interactive shells would expand.
 */
export function curl(body, v1, keyed) {
  const lines = [`curl ${quoted(`${v1}/chat/completions`)}`, `  -H 'content-type: application/json'`];
  if (keyed) lines.push(`  -H "authorization: Bearer $${KEY}"`);
  const json = JSON.stringify(body, null, 2);
  if (new TextEncoder().encode(json).length <= LONGEST) return told([...lines, `  -d ${quoted(json)}`]);
  return `${told([...lines, "  --data-binary @- <<'JSON'"])}${json.replaceAll("!", "\\u0021")}\nJSON\n`;
}

/** Return the request as a program with OpenAI's Python library. */
export function python(body, v1, keyed) {
  const { choice_params, ...known } = body;
  const given = Object.entries(known).map(([name, value]) => `    ${name}=${literal(value, 1)},\n`);
  if (choice_params) given.push(`    extra_body=${literal({ choice_params }, 1)},\n`);
  const key = keyed ? `os.environ["${KEY}"]` : `"unused"`;
  return [
    keyed ? "import os\n\n" : "",
    "from openai import OpenAI\n\n",
    `client = OpenAI(base_url=${literal(v1)}, api_key=${key})\n`,
    `answer = client.chat.completions.create(\n${given.join("")})\n`,
    "for choice in answer.choices:\n",
    '    print(choice.index, choice.finish_reason, choice.message.content, "\\n")\n',
  ].join("");
}

const told = (lines) => `${lines.join(" \\\n")}\n`;
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** Return a JSON value as a Python literal. JSON's strings and numbers are valid Python. */
function literal(value, depth = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const items = Array.isArray(value)
    ? value.map((one) => literal(one, depth + 1))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, depth + 1)}`);
  const line = `${open}${items.join(", ")}${close}`;
  if (line.length + inner.length < 90 && !line.includes("\n")) return line;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
