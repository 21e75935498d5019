// Flows of OpenAI's client for Node.
"use strict";
const { OpenAI, toFile } = require("openai");
const { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const settings = { baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 };
const client = new OpenAI(settings);

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

// What a model is asked for that can only guess: every field is bound, so that it comes to an end.
const City = z.object({
  name: z.enum(["Bern", "Zug"]),
  inhabitants: z.number().int().min(1).max(999),
  rivers: z.array(z.enum(["Aare", "Lorze"])).max(2),
});
const Place = z.object({ city: z.string() });
const results = { weather: "21 degrees", inhabitants: "440 thousand people" };

// Tools that the client runs by itself; called: with what.
const runnable = (called) =>
  Object.entries(results).map(([name, result]) =>
    zodFunction({ name, parameters: Place, description: "Told of a city.", function: (input) => (called.push([name, input]), result) }),
  );

const ended = ["completed", "failed", "expired", "cancelled"];
const pause = () => new Promise((go) => setTimeout(go, 100));

module.exports = {
  models: async () => all(await client.models.list()),
  model: ({ name }) => client.models.retrieve(name),
  complete: (fields) => client.completions.create(fields),
  stream_completion: async (fields) => all(await client.completions.create({ ...fields, stream: true })),
  chat: (fields) => client.chat.completions.create(fields),
  chat_many: ({ count, ...fields }) =>
    Promise.all(Array.from({ length: count }, () => client.chat.completions.create(fields))),
  stream_chat: async (fields) => all(await client.chat.completions.create({ ...fields, stream: true })),
  stream_chat_with_helper: async (fields) => {
    const stream = client.chat.completions.stream(fields);
    let text = "";
    stream.on("content", (part) => (text += part));
    return { text, whole: await stream.finalChatCompletion(), usage: await stream.totalUsage(), heard: text };
  },
  chat_with_key: ({ key, ...fields }) => new OpenAI({ ...settings, apiKey: key }).chat.completions.create(fields),
  chat_within: ({ milliseconds, ...fields }) => client.chat.completions.create(fields, { timeout: milliseconds }),
  leave_a_stream: async ({ frames, ...fields }) => {
    const stream = await client.chat.completions.create({ ...fields, stream: true });
    let taken = 0;
    for await (const _ of stream) if (++taken === frames) break;
    return taken;
  },
  abort_a_chat: async ({ milliseconds, ...fields }) => {
    const controller = new AbortController();
    setTimeout(() => controller.abort(), milliseconds);
    return client.chat.completions.create(fields, { signal: controller.signal });
  },
  run_tools: async ({ question, streams, model }) => {
    const called = [];
    const messages = [{ role: "user", content: question }];
    const runner = client.chat.completions.runTools({ model, messages, tools: runnable(called), stream: streams });
    return { called, text: await runner.finalContent(), messages: runner.messages.length };
  },
  run_response_tools: async ({ question, streams, model }) => {
    const called = [];
    const input = [{ role: "user", content: question }];
    const tools = Object.keys(results).map((name) => zodResponsesFunction({ name, parameters: Place }));
    for (;;) {
      const asked = { model, input, tools };
      const answer = streams
        ? await client.responses.stream(asked).finalResponse()
        : await client.responses.parse(asked);
      const calls = answer.output.filter((item) => item.type === "function_call");
      if (!calls.length) return { called, text: answer.output_text };
      for (const { parsed_arguments, ...item } of answer.output) input.push(item);
      for (const { name, call_id, parsed_arguments } of calls) {
        called.push([name, parsed_arguments]);
        input.push({ type: "function_call_output", call_id, output: results[name] });
      }
    }
  },
  respond: (fields) => client.responses.create(fields),
  stream_response: async (fields) => all(await client.responses.create({ ...fields, stream: true })),
  parse: async ({ seed, ...fields }) => {
    const { messages, model, temperature } = fields;
    const asked = { ...fields, seed, response_format: zodResponseFormat(City, "city") };
    const form = { model, temperature, seed, input: messages, text: { format: zodTextFormat(City, "city") } };
    const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
    return {
      chat: (await client.chat.completions.parse(asked)).choices[0].message.parsed,
      streamed: streamed.choices[0].message.parsed,
      response: (await client.responses.parse(form)).output_parsed,
      streamedResponse: (await client.responses.stream(form).finalResponse()).output_parsed,
    };
  },
  batch: async ({ lines, endpoint }) => {
    const file = await client.files.create({ file: await toFile(Buffer.from(lines), "lines.jsonl"), purpose: "batch" });
    let job = await client.batches.create({ input_file_id: file.id, endpoint, completion_window: "24h" });
    while (!ended.includes(job.status)) {
      await pause();
      job = await client.batches.retrieve(job.id);
    }
    const listed = (await all(await client.batches.list({ limit: 10 }))).map((one) => one.id);
    const output = job.output_file_id ? await (await client.files.content(job.output_file_id)).text() : "";
    return { file, job, listed, output, deleted: await client.files.delete(file.id) };
  },
};
