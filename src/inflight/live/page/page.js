// The page: one clock for all runs, what the user has chosen, and which runs there are.
"use strict";
(function (ns) {
  const { format, History, RunView, Colours, feeds } = ns;
  const LIVE_SECONDS = 180, PAUSED_SECONDS = 600; // that are kept
  const LONG_WINDOWS = [[600, "10 min"], [1800, "30 min"], [7200, "2 h"], [21600, "6 h"], [86400, "1 day"]]; // of long records
  const LAG = 0.15; // seconds that a live picture is behind, so that it moves evenly
  const MAX_OPEN = 4; // of several engines, the number that is drawn unless more are opened
  const FRAME_MS = 50, SLACK_MS = 6; // between two drawings: twenty a second; before which the next one is asked for
  const byId = (id) => document.getElementById(id);

  class Page {
    constructor() {
      this.colours = new Colours();
      this.runs = [];
      this.live = true;
      this.paused = false;
      this.offset = 0; // seconds since the beginning, of a replay
      this.time = 0; // of the right edge, of a live run
      this.span = 20;
      this.speed = 1;
      this.picked = null;
      this.server = "";
      this.costs = new Float32Array(1200); // ms of the last drawings, for those who measure
      this.drawings = 0;
      this.listen();
      requestAnimationFrame((now) => this.tick(now));
    }
    listen() {
      byId("pause").addEventListener("click", () => this.pause(!this.paused));
      byId("scrub").addEventListener("input", () => this.scrub(Number(byId("scrub").value) / 1000));
      byId("window").addEventListener("change", (event) => (this.span = Number(event.target.value)));
      byId("speed").addEventListener("change", (event) => (this.speed = Number(event.target.value)));
      byId("colour").addEventListener("change", (event) => {
        this.colours.setMode(event.target.value);
        this.again();
      });
      byId("download").addEventListener("click", () => this.download());
      byId("record").addEventListener("click", (event) => this.fetchRecord(event));
      document.addEventListener("keydown", (event) => this.onKey(event));
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
        this.colours.read();
        this.again();
      });
      addEventListener("resize", () => this.runs.forEach((run) => run.resize()));
    }
    onKey(event) {
      const typing = /^(INPUT|SELECT|TEXTAREA|BUTTON|A|SUMMARY)$/.test(event.target.tagName);
      if (event.key === "Escape" && this.picked) this.pick(null, null);
      else if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      else if (event.key === " ") this.pause(!this.paused);
      else if (event.key === "ArrowLeft") this.move(-this.span / 20);
      else if (event.key === "ArrowRight") this.move(this.span / 20);
      else return;
      event.preventDefault();
    }
    again() {
      for (const run of this.runs) run.again();
    }

    // -- runs ---------------------------------------------------------------------------------------------------------
    addRun(live) {
      const view = new RunView(new History(live ? LIVE_SECONDS : Infinity), this.colours, (run, number) => this.pick(run, number));
      this.runs.push(view);
      byId("runs").append(view.element);
      byId("runs").classList.toggle("beside", this.runs.length > 1);
      return view;
    }
    startLive() {
      this.engines = new Map([["", this.addRun(true)]]); // name → its view; "": of the one that there is, or of all together
      const handlers = {
        hello: (hello) => this.greetLive(hello),
        frame: (frame) => {
          this.state("live", this.paused ? "paused" : "live");
          const view = this.engines.get(frame.engine || "");
          if (!view) return;
          view.history.keep = this.paused ? PAUSED_SECONDS : LIVE_SECONDS;
          view.history.add(frame);
          if ((frame.members || []).length) this.keepEngines(frame.members);
          this.showFirst(frame.members || []);
          if (frame.lost) this.notice(`${format.counted(frame.lost, "event")} came faster than they could be drawn, and are left out.`);
        },
        state: (kind, words) => this.state(kind, words),
        key: (wrong) => this.askKey(wrong),
      };
      this.feed = new feeds.LiveFeed("live/events", handlers);
      this.feed.run();
    }
    greetLive(hello) {
      if (this.server && this.server !== hello.server) {
        this.notice("The server has been started anew; what it did before is gone.");
        for (const name of [...this.engines.keys()]) this.drop(name);
        this.resume();
        this.engines.set("", this.addRun(true));
      }
      if (this.server !== hello.server) this.busy = false;
      this.server = hello.server;
      if (hello.engine) return this.greetEngine(hello);
      this.engines.get("").greet(hello, true);
      format.setText(byId("model"), hello.title);
      document.title = `${hello.title} · inflight`;
      document.body.classList.toggle("restricted", !hello.sees_all);
      byId("record").hidden = !hello.has_record;
      if (!hello.sees_all) this.notice(`You see the requests of ${hello.tenant}; others are there without names. The whole view, pause and records need an operator's key.`);
      return undefined;
    }
    // Nothing is drawn for a fresh server: say how to send it a request, until one comes.
    showFirst(members) {
      this.busy ||= [...this.engines.values()].some((view) => view.history.requests.size > 0);
      byId("first").hidden = this.busy;
      if (this.busy) return;
      const body = JSON.stringify({ ...(members.length ? { model: members[0].name } : {}), prompt: "What is a batch?", max_tokens: 100 });
      const key = this.feed.key ? ' -H "Authorization: Bearer $KEY"' : "";
      const command = `curl ${new URL("v1/completions", document.baseURI)}${key} -H 'Content-Type: application/json' -d '${body.replaceAll("'", "'\\''")}'`;
      format.setText(byId("first").querySelector("code"), command);
    }
    // One of several engines. One that has begun anew has another clock, and nothing of what it did before.
    greetEngine(hello) {
      const known = this.engines.get(hello.engine);
      if (known && known.history.hello.clock !== hello.clock) this.drop(hello.engine);
      if (!this.engines.has(hello.engine)) this.engines.set(hello.engine, this.addRun(true));
      const view = this.engines.get(hello.engine);
      view.greet(hello, false);
      if (!known && this.engines.size > MAX_OPEN + 1) view.fold(true);
    }
    drop(name) {
      const view = this.engines.get(name);
      if (this.picked && this.picked.run === view) this.pick(null, null);
      view.element.remove();
      this.engines.delete(name);
      this.runs = this.runs.filter((one) => one !== view);
    }
    // Those that are not there any more go.
    keepEngines(members) {
      const there = new Set(members.filter((one) => one.state !== "not loaded").map((one) => one.name));
      for (const name of [...this.engines.keys()]) if (name && !there.has(name)) this.drop(name);
    }
    startReplay(sources) {
      this.live = false;
      document.body.classList.add("replay");
      byId("speed-label").hidden = false;
      let missing = sources.length;
      sources.forEach((start) => {
        const view = this.addRun(false);
        start({
          hello: (hello) => {
            view.greet(hello, sources.length === 1);
            const titles = this.runs.map((run) => run.history.hello && run.history.hello.title).filter(Boolean);
            document.title = `${titles.join(" beside ")} · inflight`;
            format.setText(byId("model"), sources.length === 1 ? hello.title : `${titles.length} runs`);
            this.suit();
          },
          frame: (frame) => {
            view.history.add(frame);
            this.tellReading();
          },
          state: (kind, words) => {
            if (kind === "whole" && --missing === 0) this.state("whole", "replay");
            else if (kind !== "whole") this.state(kind, words);
          },
        }, view).catch((fault) => this.state("lost", `this run cannot be read: ${fault.message}`));
      });
      this.state("live", "reading");
    }
    // How much of a long record has come: until there, it can be looked at.
    tellReading() {
      const now = performance.now();
      if (now - (this.toldReading || 0) < 250) return;
      this.toldReading = now;
      const shares = this.runs.map(({ history }) => (history.hello ? (history.end - history.zero) / Math.max(1e-9, history.hello.span[1] - history.zero) : 0));
      this.state("live", `reading: ${format.share(Math.min(1, ...shares))} until now`);
    }
    // A window and a speed that suit the longest run.
    suit() {
      const longest = Math.max(...this.runs.map((run) => (run.history.hello ? run.history.hello.span[1] - run.history.hello.span[0] : 0)));
      const nearest = (select, wanted) => {
        const values = [...select.options].map((one) => Number(one.value));
        const best = values.reduce((one, other) => (Math.abs(Math.log(other / wanted)) < Math.abs(Math.log(one / wanted)) ? other : one));
        select.value = String(best);
        return best;
      };
      for (const [seconds, words] of LONG_WINDOWS)
        if (seconds < 1.5 * longest && ![...byId("window").options].some((one) => Number(one.value) === seconds))
          byId("window").append(format.h("option", { value: seconds }, words));
      this.longest = longest;
      this.span = nearest(byId("window"), longest / 2);
      this.speed = nearest(byId("speed"), longest / 25);
    }
    state(kind, words) {
      byId("status").dataset.kind = this.paused && kind === "live" ? "paused" : kind;
      format.setText(byId("status-text"), words);
    }
    notice(words) {
      byId("notice").hidden = !words;
      format.setText(byId("notice"), words);
    }
    askKey(wrong) {
      const dialog = byId("key");
      this.state("refused", "a key is needed");
      if (wrong) format.setText(byId("key-why"), "That key is not known here; give another one.");
      dialog.showModal();
      return new Promise((done) => dialog.addEventListener("close", () => {
        const text = byId("key-text").value.trim();
        byId("key-text").value = "";
        done(text);
      }, { once: true }));
    }

    // -- time ---------------------------------------------------------------------------------------------------------
    get bounds() {
      if (!this.live) return [0, this.longest || 0];
      const shown = this.runs.filter((run) => run.history.frames.length);
      if (!shown.length) return [0, 0];
      return [Math.min(...shown.map((run) => run.history.start + run.clock)), Math.max(...shown.map((run) => run.history.end + run.clock))];
    }
    get at() {
      return this.live ? this.time : this.offset;
    }
    set at(value) {
      if (this.live) this.time = value;
      else this.offset = value;
    }
    pause(paused) {
      if (document.body.classList.contains("restricted")) return;
      const [, end] = this.bounds;
      if (!paused && !this.live && this.offset >= end - 1e-6) this.offset = 0;
      this.paused = paused;
      const button = byId("pause");
      button.setAttribute("aria-pressed", String(paused));
      format.setText(button.querySelector(".word"), paused ? (this.live ? "Go on" : "Play") : "Pause");
      if (this.live) this.state("live", paused ? "paused" : "live");
      this.again();
    }
    resume() {
      if (this.paused) this.pause(false);
    }
    scrub(share) {
      const [start, end] = this.bounds;
      if (!this.paused) this.pause(true);
      this.at = start + share * (end - start);
      if (this.live && share >= 0.999) this.resume();
    }
    move(seconds) {
      if (!this.paused) this.pause(true);
      const [start, end] = this.bounds;
      this.at = Math.max(start, Math.min(end, this.at + seconds));
    }
    advance(elapsed) {
      const [start, end] = this.bounds;
      if (this.paused) {
        this.at = Math.max(start, this.at);
        return;
      }
      if (!this.live) {
        this.offset = Math.min(end, this.offset + elapsed * this.speed);
        if (end && this.offset >= end) this.pause(true);
        return;
      }
      const wanted = end - LAG;
      this.time = Math.min(this.time + elapsed, end);
      if (Math.abs(wanted - this.time) > 0.6) this.time = wanted;
      else this.time += (wanted - this.time) * 0.08;
    }
    tick(now) {
      // A frame that nothing is drawn in costs its share of layout and paint, too: none is asked for before it is due.
      setTimeout(() => requestAnimationFrame((later) => this.tick(later)), Math.max(0, FRAME_MS - SLACK_MS - (performance.now() - now)));
      const elapsed = this.last === undefined ? 0 : Math.min(1, (now - this.last) / 1e3);
      this.last = now;
      const began = performance.now();
      this.advance(elapsed);
      for (const run of this.runs) run.draw(this.timeOf(run), this.span, now);
      this.showClock(now);
      if (this.picked && now - (this.shownAt || 0) > 500) this.showPicked(now);
      this.costs[this.drawings++ % this.costs.length] = performance.now() - began;
    }
    timeOf(run) {
      if (this.live) return this.time - run.clock;
      const { hello } = run.history;
      return (hello && hello.span ? hello.span[0] : 0) + this.offset;
    }
    showClock(now) {
      if (now - (this.clocked || 0) < 100) return;
      this.clocked = now;
      const [start, end] = this.bounds, scrub = byId("scrub");
      const place = end > start ? Math.round(((this.at - start) / (end - start)) * 1000) : 1000;
      const value = String(this.live && !this.paused ? 1000 : place);
      if ((document.activeElement !== scrub || !this.paused) && scrub.value !== value) scrub.value = value;
      const behind = end - this.at;
      const words = this.live ? (this.paused && behind > 0.5 ? `${format.seconds(behind)} ago` : "now") : `${this.at.toFixed(2)} of ${format.seconds(end)}`;
      format.setText(byId("clock"), words);
      scrub.setAttribute("aria-valuetext", words);
    }

    // -- one request --------------------------------------------------------------------------------------------------
    pick(run, number) {
      for (const one of this.runs) one.select(one === run ? number : null);
      this.picked = number === null ? null : { run, number };
      if (this.picked) {
        this.showPicked(performance.now());
        byId("drawer").focus({ preventScroll: true });
      } else byId("drawer").hidden = true;
    }
    showPicked(now) {
      this.shownAt = now;
      const drawer = byId("drawer"), { run, number } = this.picked;
      if (!drawer.hidden && drawer.contains(document.activeElement) && document.activeElement !== drawer && this.shownNumber === number) return;
      this.shownNumber = number;
      const known = run.history.requests.get(number), asks = this.feed && !this.paused && known && !known.ended && known.info.request_id;
      const draw = (living) => {
        drawer.hidden = !ns.request.show(drawer, run, number, this.timeOf(run), (other) => this.pick(run, other), () => this.pick(null, null), living);
      };
      if (!asks) return void draw();
      if (this.living && this.living.number === number) draw(this.living.account);
      else draw();
      this.feed.account(known.info.request_id).then((account) => {
        if (!this.picked || this.picked.number !== number || this.picked.run !== run) return;
        this.living = { number, account };
      });
    }

    // -- downloads ----------------------------------------------------------------------------------------------------
    save(blob, name) {
      const link = format.h("a", { href: URL.createObjectURL(blob), download: name });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }
    download() {
      for (const { history } of this.runs) {
        const name = (history.hello ? history.hello.title : "run").replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 60);
        this.save(new Blob(history.saved(), { type: "application/jsonl" }), `inflight-${name}.jsonl`);
      }
    }
    // A link cannot send a key in a header.
    async fetchRecord(event) {
      if (!this.feed || !this.feed.key) return;
      event.preventDefault();
      const response = await fetch("live/record", { headers: { Authorization: `Bearer ${this.feed.key}` }, credentials: "omit" });
      if (response.ok) this.save(await response.blob(), "record.jsonl");
      else this.notice(`The record cannot be had: the server answers ${response.status}.`);
    }
  }

  const page = (ns.page = new Page());
  const held = [...document.querySelectorAll('script[type="application/x-inflight-frames"]')];
  const replayed = document.querySelector('meta[name="inflight-replay"]');
  if (held.length) page.startReplay(held.map((one) => (handlers) => feeds.held(one.textContent, handlers)));
  else if (replayed) page.startReplay([...Array(Number(replayed.content)).keys()].map((one) => (handlers, view) => {
    view.close = new ns.CloseView(view.history, (from, to) => feeds.stretch(`frames/${one}`, from, to));
    return feeds.replayed(`frames/${one}`, handlers);
  }));
  else page.startLive();
})((window.inflight ??= {}));
