// Stream several answers with fetch alone, in Node or in a browser: node examples/node/fetch_sse.mjs
// OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). OPENAI_API_KEY: a key of it. MODEL: the model's id
// there.
const baseURL = process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8000/v1";

const answer = await fetch(`${baseURL}/chat/completions`, {
  method: "POST",
  headers: { "content-type": "application/json", authorization: `Bearer ${process.env.OPENAI_API_KEY ?? "unused"}` },
  body: JSON.stringify({
    model: process.env.MODEL ?? "smollm2-135m-instruct",
    messages: [{ role: "user", content: "Write one sentence about the sea." }],
    n: 3,
    temperature: 0.8,
    max_tokens: 24,
    stream: true,
  }),
});
if (!answer.ok) throw new Error((await answer.json()).error.message);

// A blank line ends each event. A piece of the body may contain several events, or part of one.
async function* events(body) {
  let rest = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    const whole = (rest + piece).split("\n\n");
    rest = whole.pop();
    for (const event of whole) if (event.startsWith("data: ")) yield event.slice("data: ".length);
  }
}

const texts = [];
let done = false;
for await (const data of events(answer.body)) {
  if (data === "[DONE]") {
    done = true;
    break;
  }
  const chunk = JSON.parse(data);
  if (chunk.error) throw new Error(chunk.error.message); // a failure after the status was sent
  for (const { index, delta } of chunk.choices) texts[index] = (texts[index] ?? "") + (delta.content ?? "");
}
if (!done) throw new Error("the stream broke off");
texts.forEach((text, index) => console.log(`choice ${index}: ${text.trim()}`));
