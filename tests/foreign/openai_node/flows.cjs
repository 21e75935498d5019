// Flows of OpenAI's client for Node.
"use strict";
const { OpenAI, toFile } = require("openai");

const settings = { baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 };
const client = new OpenAI(settings);

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

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
