// This server, asked: which models there are, and an answer as it comes. The key goes into a header, never into an address,
// and is kept in this page's memory, or in the tab's storage where the user says so.
"use strict";
(function (ns) {
  const STORED = "inflight-key";

  class Refused extends Error {
    constructor(message, status) {
      super(message);
      this.status = status;
    }
  }

  class Api {
    constructor() {
      this.key = "";
      try {
        this.key = sessionStorage.getItem(STORED) || "";
      } catch { /* a page without storage asks */ }
    }
    // kept: whether the tab may keep it until it is closed.
    setKey(key, kept) {
      this.key = key;
      try {
        if (kept && key) sessionStorage.setItem(STORED, key);
        else sessionStorage.removeItem(STORED);
      } catch { /* for this page alone */ }
    }
    get isKept() {
      try {
        return Boolean(sessionStorage.getItem(STORED));
      } catch {
        return false;
      }
    }
    // more: headers beside its own.
    async ask(path, body, signal, more = {}) {
      const headers = { ...more };
      if (this.key) headers.Authorization = `Bearer ${this.key}`;
      if (body) headers["Content-Type"] = "application/json";
      const response = await fetch(path, {
        method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal, cache: "no-store", credentials: "omit",
      });
      if (response.ok) return response;
      const answer = await response.json().catch(() => ({}));
      throw new Refused((answer.error && answer.error.message) || `The server answers with HTTP ${response.status}.`, response.status);
    }
    async models() {
      const models = await (await this.ask("v1/models")).json();
      return models.data;
    }
    // Frames of an answer. Throws Refused if the server returns an error, or if the stream ends early.
    async *answer(body, headers, signal, onSign) {
      const isText = "prompt" in body;
      const response = await this.ask(isText ? "v1/completions" : "v1/chat/completions", body, signal, headers);
      let done = false;
      for await (const line of lines(response)) {
        onSign();
        if (!line.startsWith("data:")) continue; // ": waiting", so that proxies keep the connection
        const data = line.slice(5).trim();
        if (data === "[DONE]") {
          done = true;
          break;
        }
        const frame = JSON.parse(data);
        if (frame.error) throw new Refused(frame.error.message || "The server made a mistake.", 500);
        yield isText ? asChat(frame) : frame;
      }
      if (!done) throw new TypeError("the stream ended before its end");
    }
  }

  // A frame of a continued text, as a conversation's.
  function asChat(frame) {
    const choices = (frame.choices || []).map(({ text, logprobs: of, finish_reason }) => {
      const scored = (token, logprob) => ({ token, logprob, bytes: bytesOf(token) });
      const content = ((of && of.tokens) || []).map((token, place) => ({ ...scored(token, of.token_logprobs[place]),
        top_logprobs: Object.entries((of.top_logprobs || [])[place] || {}).map((one) => scored(...one)) }));
      return { delta: { content: text }, logprobs: { content }, finish_reason };
    });
    return { ...frame, choices };
  }

  // Of a token's name; a piece of a character is named by its bytes.
  function bytesOf(token) {
    const named = /^bytes:((?:\\x[0-9a-f]{2})+)$/.exec(token);
    return named ? named[1].slice(2).split("\\x").map((one) => parseInt(one, 16)) : [...new TextEncoder().encode(token)];
  }

  async function* lines(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  }
  ns.Api = Api;
  ns.Refused = Refused;
})((window.inflight ??= {}));
