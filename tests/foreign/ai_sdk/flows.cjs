// Flows of the AI SDK.
"use strict";
const { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool, ToolLoopAgent } = require("ai");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { z } = require("zod");

globalThis.AI_SDK_LOG_WARNINGS = false;
const baseURL = process.env.BASE_URL;

// api: how the client is told of the server; what nothing is said of is as the client has it. Over `storing` this
// client names what was answered before by its ids, which is what it does unless it is told otherwise.
function settings({ api, model, key = process.env.API_KEY, extra = {}, ...fields }) {
  const where = { baseURL, apiKey: key };
  const models = {
    compatible: () =>
      createOpenAICompatible({ name: "inflight", ...where, includeUsage: true, supportsStructuredOutputs: true })(model),
    chat: () => createOpenAI(where).chat(model),
    responses: () => createOpenAI(where)(model),
    storing: () => createOpenAI(where)(model),
    messages: () => createAnthropic(where)(model),
  };
  const providerOptions = { inflight: extra, openai: extra, anthropic: extra };
  if (api === "responses") providerOptions.openai = { store: false, ...extra };
  return { model: models[api](), maxRetries: 0, providerOptions, ...fields };
}

// What a model is asked for that can only guess. Nothing in it has a length: over Messages bounds are not sent.
const City = z.object({ name: z.enum(["Bern", "Zug"]), large: z.boolean(), river: z.enum(["Aare", "Lorze"]).nullable() });
const Report = z.object({ city: z.string(), degrees: z.number().int() });

const results = { weather: "21 degrees", inhabitants: "440 thousand people", survey: "surveyed: 21" };

function tools(called, ...names) {
  const make = (name) =>
    tool({
      description: "Told of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async (input) => {
        called.push([name, input]);
        return results[name];
      },
    });
  return Object.fromEntries(names.map((name) => [name, make(name)]));
}

const usage = ({ inputTokens, outputTokens }) => ({ input: inputTokens, output: outputTokens });

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

// What a stream comes to; its errors are parts of it, and raised here.
async function collect(stream) {
  const parts = await all(stream.fullStream);
  const failed = parts.find((part) => part.type === "error");
  if (failed) throw failed.error;
  return {
    text: await stream.text,
    heard: parts.filter((part) => part.type === "text-delta").map((part) => part.text),
    thought: await stream.reasoningText,
    reason: await stream.finishReason,
    usage: usage(await stream.totalUsage),
    steps: (await stream.steps).length,
  };
}

async function generate(fields) {
  const told = await generateText(fields);
  const { text, reasoningText: thought, finishReason: reason } = told;
  return { text, thought, reason, usage: usage(told.totalUsage), steps: told.steps.length, output: told };
}

const quiet = { onError: () => {} };
const run = async (streams, fields) => {
  if (streams) return collect(streamText({ ...fields, ...quiet }));
  const { output: _, ...told } = await generate(fields);
  return told;
};

module.exports = {
  ask: ({ streams = false, ...fields }) => run(streams, settings(fields)),
  converse: async ({ questions, streams, ...fields }) => {
    const messages = [];
    const texts = [];
    for (const content of questions) {
      messages.push({ role: "user", content });
      const asked = { ...settings(fields), messages };
      const stream = streams ? streamText(asked) : null;
      if (stream) await stream.consumeStream();
      const { response, text } = stream ? { response: await stream.response, text: await stream.text } : await generateText(asked);
      messages.push(...response.messages);
      texts.push(text);
    }
    return texts;
  },
  run_tools: async ({ streams, ...fields }) => {
    const called = [];
    const asked = { ...settings(fields), tools: tools(called, "weather", "inhabitants"), stopWhen: stepCountIs(5) };
    return { called, ...(await run(streams, asked)) };
  },
  run_agent: async ({ streams, prompt, ...fields }) => {
    const called = [];
    const asked = { ...settings(fields), tools: tools(called, "weather", "inhabitants") };
    const agent = new ToolLoopAgent({ ...asked, stopWhen: stepCountIs(5) });
    if (streams) return { called, ...(await collect(await agent.stream({ prompt }))) };
    const { text, steps } = await agent.generate({ prompt });
    return { called, text, steps: steps.length };
  },
  forced: async ({ choice, ...fields }) => {
    const { weather, inhabitants } = tools([], "weather", "inhabitants");
    const asked = { ...settings(fields), tools: { weather, inhabitants }, toolChoice: choice };
    return (await generateText(asked)).toolCalls.map((call) => [call.toolName, call.input]);
  },
  survey: async ({ streams, ...fields }) => {
    const called = [];
    const output = Output.object({ schema: Report });
    const asked = { ...settings(fields), tools: tools(called, "survey"), output, stopWhen: stepCountIs(5) };
    if (!streams) return { called, made: (await generateText(asked)).output };
    const stream = streamText(asked);
    await stream.consumeStream();
    return { called, made: await stream.output };
  },
  // The form as the client asks for it where it does not know the model: Messages get a tool for it.
  report: async (fields) => {
    const asked = { ...settings(fields), output: Output.object({ schema: Report }) };
    const stream = streamText(asked);
    await stream.consumeStream();
    return [(await generateText(asked)).output, await stream.output];
  },
  guess: async (fields) => {
    const asked = settings(fields);
    const stream = streamText({ ...asked, output: Output.object({ schema: City }) });
    const grown = await all(stream.partialOutputStream);
    const older = streamObject({ ...asked, schema: City });
    return {
      text: (await generateText({ ...asked, output: Output.object({ schema: City }) })).output,
      streamed: await stream.output,
      grown: grown.at(-1),
      object: (await generateObject({ ...asked, schema: City })).object,
      streamedObject: (await all(older.partialObjectStream)) && (await older.object),
    };
  },
  leave: async ({ milliseconds, ...fields }) =>
    generateText({ ...settings(fields), abortSignal: AbortSignal.timeout(milliseconds) }),
};
