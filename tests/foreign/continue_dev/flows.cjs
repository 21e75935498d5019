// Flows of Continue's adapters, one for each provider of its configuration.
"use strict";
const adapters = import(`${process.env.NODE_PATH}/@continuedev/openai-adapters/dist/index.js`);
const signal = new AbortController().signal;

async function api(provider) {
  const { constructLlmApi } = await adapters;
  return constructLlmApi({ provider, apiBase: `${process.env.BASE_URL}/`, apiKey: process.env.API_KEY });
}

module.exports = {
  models: async ({ provider }) => (await (await api(provider)).list()).map((one) => one.id),
  chat: async ({ provider, ...fields }) => {
    let text = "";
    for await (const part of (await api(provider)).chatCompletionStream({ ...fields, stream: true }, signal))
      text += part.choices[0]?.delta?.content ?? "";
    return text;
  },
  complete: async ({ provider, ...fields }) => {
    let text = "";
    for await (const part of (await api(provider)).completionStream({ ...fields, stream: true }, signal))
      text += part.choices[0]?.text ?? "";
    return text;
  },
  fill: async ({ provider, ...fields }) => {
    let text = "";
    for await (const part of (await api(provider)).fimStream({ ...fields, stream: true }, signal))
      text += part.choices[0]?.delta?.content ?? "";
    return text;
  },
};
