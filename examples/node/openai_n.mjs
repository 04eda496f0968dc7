// Stream several answers with the official Node client: node examples/node/openai_n.mjs (npm install openai)
// OPENAI_BASE_URL: where nproxy listens (default http://127.0.0.1:8000/v1). MODEL: the model's id there.
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? "http://127.0.0.1:8000/v1",
  apiKey: process.env.OPENAI_API_KEY ?? "unused",
});

const stream = await client.chat.completions.create({
  model: process.env.MODEL ?? "smollm2-135m-instruct",
  messages: [{ role: "user", content: "Write one sentence about the sea." }],
  n: 3,
  temperature: 0.8,
  max_tokens: 24,
  stream: true,
});

const texts = [];
for await (const chunk of stream) {
  for (const { index, delta } of chunk.choices) texts[index] = (texts[index] ?? "") + (delta.content ?? "");
}
texts.forEach((text, index) => console.log(`choice ${index}: ${text.trim()}`));
