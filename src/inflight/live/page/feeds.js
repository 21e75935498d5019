// Where frames come from: the server's stream of events, lines that a replaying server sends, or what the page holds.
// Keys are sent in a header, never in an address; a stream that broke is asked for again, from where it was.
"use strict";
(function (ns) {
  const SILENT = 6000; // ms without a byte, after which a stream counts as lost: a laptop was closed
  const PAUSES = [250, 500, 1000, 2000, 4000];
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));

  async function* lines(response, onBytes) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      onBytes();
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  }

  // The live stream of this server. handlers: {hello, frame, state(kind, words), key() → Promise}.
  class LiveFeed {
    constructor(address, handlers) {
      this.address = address;
      this.handlers = handlers;
      this.lastId = null;
      this.key = null;
      this.tries = 0;
      try {
        this.key = sessionStorage.getItem("inflight-key");
      } catch { /* a page without storage asks again */ }
    }
    async run() {
      for (;;) {
        const pause = await this.once().catch(() => null);
        if (pause === false) return;
        if (typeof pause !== "number") this.handlers.state("lost", "connection lost; trying again"); // else it has said why
        await wait(typeof pause === "number" ? pause : PAUSES[Math.min(this.tries++, PAUSES.length - 1)]);
      }
    }
    async once() {
      const abort = new AbortController();
      const headers = { Accept: "text/event-stream" };
      if (this.key) headers.Authorization = `Bearer ${this.key}`;
      if (this.lastId) headers["Last-Event-ID"] = this.lastId;
      let timer = setTimeout(() => abort.abort(), SILENT);
      const heard = () => {
        clearTimeout(timer);
        timer = setTimeout(() => abort.abort(), SILENT);
      };
      try {
        const response = await fetch(this.address, { headers, signal: abort.signal, cache: "no-store", credentials: "omit" });
        heard();
        if (response.status === 401) {
          clearTimeout(timer);
          this.keep(await this.handlers.key(Boolean(this.key)));
          return 0;
        }
        if (!response.ok) {
          const why = await response.json().catch(() => ({}));
          const sentence = (why.error && why.error.message) || `the server answers ${response.status}`;
          this.handlers.state(response.status === 503 ? "loading" : "refused", sentence);
          return response.status === 403 || response.status === 404 ? false : 1000;
        }
        this.tries = 0;
        for await (const line of lines(response, heard)) this.take(line);
      } finally {
        clearTimeout(timer);
        abort.abort();
      }
    }
    // Of a living request; null where it has ended, or the server does not answer.
    async account(id) {
      const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
      try {
        const response = await fetch(`live/account?id=${encodeURIComponent(id)}`, { headers, cache: "no-store", credentials: "omit" });
        return response.ok ? await response.json() : null;
      } catch {
        return null;
      }
    }
    take(line) {
      if (line.startsWith("id: ")) this.nextId = line.slice(4);
      if (!line.startsWith("data: ")) return;
      const message = JSON.parse(line.slice(6));
      if (message.type === "frame") this.lastId = this.nextId;
      ns.dispatch(message, this.handlers);
    }
    keep(key) {
      this.key = key;
      try {
        sessionStorage.setItem("inflight-key", key);
      } catch { /* for this page alone */ }
    }
  }

  // Lines of a replaying server, which reads a record while it sends.
  async function replayed(address, handlers) {
    const response = await fetch(address, { cache: "no-store", credentials: "omit" });
    for await (const line of lines(response, () => {})) if (line) ns.dispatch(JSON.parse(line), handlers);
    handlers.state("whole", "all of it is here");
  }

  // A stretch of one of its runs, drawn more closely: all its frames.
  async function stretch(address, from, to) {
    const response = await fetch(`${address}?from=${from}&to=${to}`, { cache: "no-store", credentials: "omit" });
    const frames = [];
    for await (const line of lines(response, () => {})) if (line) frames.push(JSON.parse(line));
    return frames;
  }

  // What the page holds itself, compressed.
  async function held(text, handlers) {
    const bytes = Uint8Array.from(atob(text.trim()), (one) => one.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    for await (const line of lines(new Response(stream), () => {})) if (line) ns.dispatch(JSON.parse(line), handlers);
    handlers.state("whole", "all of it is here");
  }

  ns.dispatch = (message, handlers) => {
    if (message.type === "hello") handlers.hello(message);
    else if (message.type === "frame") handlers.frame(message);
    else if (message.type === "problem") handlers.state("lost", message.sentence);
  };
  ns.feeds = { LiveFeed, replayed, stretch, held };
})((window.inflight ??= {}));
