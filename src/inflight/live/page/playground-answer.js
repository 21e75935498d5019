// One answer while it comes and when it is there: its tokens, its account of time, how it ended.
"use strict";
(function (ns) {
  const { format, account, tokens } = ns;
  const { h, setText } = format;
  const ENDS = { stop: "", length: "It ends at max_tokens.", tool_calls: "It calls a tool, which the playground does not run." };

  class Answer {
    // announcer: {announce(text)}: for screen readers. given: what it begins with, which was not drawn.
    constructor(announcer, given = "") {
      this.announcer = announcer;
      this.content = given;
      this.reasoning = "";
      this.counted = 0;
      this.began = performance.now();
      this.first = null;
      this.text = new tokens.TokenText(given);
      this.thoughts = h("details", { class: "thoughts", hidden: true }, h("summary", {}, "Reasoning"), (this.thought = h("p", { class: "text" })));
      this.status = h("p", { class: "why" }, "waiting");
      this.account = h("div", { class: "times" }, this.status);
      this.problem = h("p", { class: "problem", hidden: true });
      this.buttons = h("p", { class: "acts" });
      this.element = h("article", { class: "message assistant", "aria-label": "Answer", "aria-busy": "true" }, this.thoughts, this.text.element, this.problem, this.account, this.buttons);
      this.clock = setInterval(() => this.tick(), 250);
    }
    take(frame) {
      for (const choice of frame.choices || []) this.takeChoice(choice);
      if (frame.usage) this.usage = frame.usage;
      if (frame.timings) this.timings = frame.timings;
    }
    takeChoice({ delta, logprobs, finish_reason: reason }) {
      const scores = (logprobs && logprobs.content) || [], content = delta.content || "", thought = delta.reasoning_content || "";
      if ((content || thought || scores.length) && this.first === null) this.first = performance.now();
      if (thought) {
        this.reasoning += thought;
        this.thoughts.hidden = false;
        setText(this.thought, this.reasoning);
      }
      this.counted += scores.length || (content ? 1 : 0);
      this.content += content;
      if (content || scores.length) this.text.add(content, scores);
      if (content) this.hear(content);
      if (reason) this.reason = reason;
    }
    // Whole sentences, no faster than they can be heard.
    hear(content) {
      this.unheard = (this.unheard || "") + content;
      const end = Math.max(this.unheard.lastIndexOf(". "), this.unheard.lastIndexOf("? "), this.unheard.lastIndexOf("! "), this.unheard.lastIndexOf("\n"));
      if (end < 0 || performance.now() - (this.heardAt || 0) < 1500) return;
      this.heardAt = performance.now();
      this.announcer.announce(this.unheard.slice(0, end + 1));
      this.unheard = this.unheard.slice(end + 1);
    }
    tick() {
      const now = performance.now(), since = (now - this.began) / 1e3;
      if (this.first === null) return setText(this.status, `waiting, ${format.seconds(since)}`);
      const rate = this.counted / Math.max(0.05, (now - this.first) / 1e3);
      setText(this.status, `first token after ${format.seconds((this.first - this.began) / 1e3)}, ${format.count(rate)} tokens/s`);
    }
    // how: "" where it came to its end, else a sentence.
    end(how = "", isProblem = false) {
      clearInterval(this.clock);
      this.text.end();
      this.element.setAttribute("aria-busy", "false");
      const said = how || ENDS[this.reason] || (this.reason && this.reason !== "stop" ? `It ended: ${this.reason}.` : "");
      this.problem.hidden = !said;
      this.problem.classList.toggle("bad", isProblem);
      setText(this.problem, said);
      this.tick();
      if (this.timings) this.showAccount(this.timings);
      else if (this.first === null) this.account.hidden = true;
      this.announcer.announce([this.unheard || "", said].filter(Boolean).join(" "));
    }
    showAccount(timings) {
      const parts = Object.fromEntries(account.PARTS.map(([key]) => [key, timings[key + "_ms"]]));
      const { reasons, behind } = account.waits(timings), usage = this.usage || {};
      const facts = [
        timings.ttft_ms !== null && ["first token", format.seconds(timings.ttft_ms / 1e3)],
        timings.output_tokens_per_s && ["speed", `${format.count(timings.output_tokens_per_s)} tokens/s`],
        usage.completion_tokens !== undefined && ["answer", format.counted(usage.completion_tokens, "token")],
        usage.prompt_tokens !== undefined && ["prompt", format.counted(usage.prompt_tokens, "token") + (timings.cached_tokens ? `, ${format.count(timings.cached_tokens)} from the cache` : "")],
        timings.recomputed_tokens && ["computed again", format.counted(timings.recomputed_tokens, "token")],
        timings.lane && ["lane", timings.lane],
      ].filter(Boolean);
      this.account.replaceChildren(
        h("p", { class: "brief" }, ...facts.map(([key, value]) => h("span", {}, `${key} `, h("b", {}, value)))),
        account.bar(parts, timings.total_ms),
        h("details", {}, h("summary", {}, `Where ${format.seconds(timings.total_ms / 1e3)} went`), account.words(parts),
          reasons.length ? h("p", { class: "why" }, `It waited: ${reasons.join("; ")}.${behind ? ` Behind lanes: ${behind}.` : ""}`) : null));
    }
    offer(...buttons) {
      this.buttons.replaceChildren(...buttons);
    }
  }
  ns.Answer = Answer;
})((window.inflight ??= {}));
