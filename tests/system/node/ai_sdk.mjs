// Runs one form of request with the Vercel AI SDK, which does not support n, and prints the result as JSON:
// node ai_sdk.mjs FORM BASE_URL MODEL, where FORM is generateText, streamText or error.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";

const [form, baseURL, modelId] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "nproxy", baseURL, apiKey: "unused", includeUsage: true });
const asked = {
  model: provider(modelId),
  prompt: "Write one sentence about the sea.",
  seed: 21,
  temperature: 0.9,
  maxOutputTokens: 16,
  maxRetries: 0,
};

const forms = {
  async generateText() {
    const { text, finishReason, usage, response } = await generateText(asked);
    return { text, finishReason, usage, model: response.modelId };
  },

  async streamText() {
    const errors = [];
    const stream = streamText({ ...asked, onError: ({ error }) => errors.push(String(error)) });
    const pieces = [];
    for await (const piece of stream.textStream) pieces.push(piece);
    return { pieces, errors, text: await stream.text, finishReason: await stream.finishReason, usage: await stream.usage };
  },

  async error() {
    try {
      await generateText({ ...asked, model: provider("no-such-model") });
    } catch (error) {
      return { known: APICallError.isInstance(error), status: error.statusCode, message: error.message };
    }
  },
};

console.log(JSON.stringify(await forms[form]()));
