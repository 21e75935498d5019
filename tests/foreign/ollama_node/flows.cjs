// Flows of ollama's client for Node.
"use strict";
const { Ollama } = require("ollama");

const host = process.env.BASE_URL.replace(/\/v1$/, "");
const as = (key) => new Ollama({ host, headers: { Authorization: `Bearer ${key}` } });
const client = as(process.env.API_KEY);
const place = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const results = { weather: "21 degrees", inhabitants: "440 thousand people" };
const tools = Object.keys(results).map((name) => ({
  type: "function",
  function: { name, description: "Told of a city.", parameters: place },
}));

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

module.exports = {
  models: () => client.list(),
  loaded: () => client.ps(),
  show: ({ model }) => client.show({ model }),
  version: () => client.version(),
  chat: (fields) => client.chat(fields),
  chat_with_key: ({ key, ...fields }) => as(key).chat(fields),
  stream_chat: async (fields) => all(await client.chat({ ...fields, stream: true })),
  chat_many: ({ count, ...fields }) => Promise.all(Array.from({ length: count }, () => client.chat(fields))),
  abort_a_chat: async ({ parts, ...fields }) => {
    const stream = await client.chat({ ...fields, stream: true });
    let taken = 0;
    try {
      for await (const _ of stream) if (++taken === parts) stream.abort();
    } catch (error) {
      return [taken, error.name];
    }
    return [taken, null];
  },
  generate: (fields) => client.generate(fields),
  stream_generate: async (fields) => all(await client.generate({ ...fields, stream: true })),
  embed: (fields) => client.embed(fields),
  run_tools: async ({ question, model, streams }) => {
    const called = [];
    const messages = [{ role: "user", content: question }];
    for (;;) {
      let message = { role: "assistant", content: "", tool_calls: [] };
      if (streams) {
        for await (const part of await client.chat({ model, messages, tools, stream: true })) {
          message.content += part.message.content;
          message.tool_calls.push(...(part.message.tool_calls ?? []));
        }
      } else {
        message = (await client.chat({ model, messages, tools })).message;
      }
      messages.push(message);
      if (!message.tool_calls?.length) return { called, text: message.content };
      for (const { function: asked } of message.tool_calls) {
        called.push([asked.name, asked.arguments]);
        messages.push({ role: "tool", tool_name: asked.name, content: results[asked.name] });
      }
    }
  },
  pull: async ({ model }) => all(await client.pull({ model, stream: true })),
  remove: ({ model }) => client.delete({ model }),
};
