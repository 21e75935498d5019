// A long record, looked at closely: where the shown stretch has too few frames, these are asked for, and shown in place of
// the run's own. Knows one run and whom to ask.
"use strict";
(function (ns) {
  const { History } = ns;
  const LEAST = 200; // frames that a window should have
  const AROUND = 1; // windows before and behind the shown one that are asked for, too
  const PAUSE = 400; // ms between two questions

  class CloseView {
    // ask(from, to): resolves to frames.
    constructor(history, ask) {
      Object.assign(this, { history, ask, found: null, asking: false, askedAt: 0 });
    }
    // What is to be shown of that time: a stretch, or the run's own history.
    at(time, span, now) {
      const { hello } = this.history;
      if (!hello || !hello.span || span / hello.period >= LEAST || time > this.history.end) return this.history;
      const from = Math.max(hello.span[0], time - span), to = Math.min(hello.span[1], time);
      const found = this.found, covers = found && found.from <= from + 1e-6 && found.to >= to - 1e-6 && found.span === span;
      if (!this.asking && now - this.askedAt > PAUSE && !(covers && (found.to >= hello.span[1] - 1e-6 || found.to - to > span / 2))) this.fetch(from, to, span, now);
      return covers ? found.history : this.history;
    }
    async fetch(from, to, span, now) {
      this.asking = true;
      this.askedAt = now;
      const { span: whole } = this.history.hello;
      const stretch = { from: Math.max(whole[0], from - AROUND * span), to: Math.min(whole[1], to + AROUND * span), span, history: new History(Infinity, this.history) };
      try {
        stretch.history.greet(this.history.hello);
        for (const frame of await this.ask(stretch.from, stretch.to)) stretch.history.add(frame);
        if (stretch.history.frames.length) this.found = stretch;
      } catch { /* the run's own frames are shown */ }
      this.asking = false;
    }
  }
  ns.CloseView = CloseView;
})((window.inflight ??= {}));
