// Runs one form of request with the official Node client and prints the result as JSON:
// node clients.mjs FORM BASE_URL MODEL, where FORM is create, stream, helper, completions or error.
import OpenAI from "openai";

const [form, baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "Write one sentence about the sea." }];
const asked = { model, messages, n: 4, seed: 21, max_tokens: 16 };

const forms = {
  async create() {
    return await client.chat.completions.create(asked);
  },

  async stream() {
    const chunks = [];
    const stream = await client.chat.completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) chunks.push(chunk);
    return chunks;
  },

  async helper() {
    return await client.chat.completions.stream(asked).finalChatCompletion();
  },

  async completions() {
    const prompt = ["The sea is", "A cat can"];
    return await client.completions.create({ model, prompt, n: 2, seed: 21, max_tokens: 8 });
  },

  async error() {
    try {
      await client.chat.completions.create({ ...asked, n: 0 });
    } catch (error) {
      return { name: error.constructor.name, status: error.status, param: error.param, code: error.code };
    }
  },
};

console.log(JSON.stringify(await forms[form]()));
