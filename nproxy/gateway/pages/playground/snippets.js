// A request as something to paste. The key is never in it: it is read from the environment.

const KEY = "NPROXY_API_KEY";

/** As a command for a POSIX shell. `v1` is the API's base URL, `keyed` whether a key goes with it. */
export function curl(body, v1, keyed) {
  const lines = [`curl ${quoted(`${v1}/chat/completions`)}`, `  -H 'content-type: application/json'`];
  if (keyed) lines.push(`  -H "authorization: Bearer $${KEY}"`);
  return [...lines, `  -d ${quoted(JSON.stringify(body, null, 2))}`].join(" \\\n") + "\n";
}

/** As a program with OpenAI's Python library. */
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

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** A JSON value in Python's spelling. JSON's strings and numbers are Python's, too. */
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
