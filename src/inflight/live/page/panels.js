// The panels of text and numbers: tiles, queues, engines, the requests of the batch, and settings.
"use strict";
(function (ns) {
  const { format } = ns;
  const { REASONS } = ns.account;
  const { h } = format;

  class Tiles {
    constructor(element) {
      this.values = {};
      const tile = (key, name) => {
        const value = h("dd", {}, h("b", {}, "–"), h("small", {}));
        element.append(h("div", { class: "tile" }, h("dt", {}, name), value));
        this.values[key] = value;
      };
      tile("output", "Output tokens / s");
      tile("prompt", "Prompt tokens / s");
      tile("running", "Running");
      tile("waiting", "Waiting");
      tile("ttft", "First token");
      tile("itl", "Time per output token");
      tile("kv", "KV memory");
      tile("step", "Step");
    }
    set(key, text, about) {
      const [value, small] = this.values[key].children;
      format.setText(value, text);
      format.setText(small, about);
    }
    // Of several engines together: their sums.
    showMembers(members) {
      const sum = (key) => members.reduce((all, one) => all + (one[key] || 0), 0);
      for (const [key, value] of Object.entries(this.values)) value.parentElement.hidden = !["output", "running", "waiting", "kv"].includes(key);
      this.set("output", format.count(sum("output_tokens_per_s")), "of all engines");
      this.set("running", format.count(sum("running")), `in ${format.counted(members.length, "engine")}`);
      this.set("waiting", format.count(sum("waiting")), "");
      this.set("kv", format.share(sum("held_blocks") / Math.max(1, sum("blocks"))), `${format.count(sum("held_blocks"))} of ${format.count(sum("blocks"))} blocks`);
    }
    show(history, frame, time) {
      const hello = history.hello, rates = frame.rates, blocks = frame.blocks || {};
      this.set("output", format.count(rates.output_tokens || 0), `${(rates.requests || 0).toFixed(2)} requests / s`);
      this.set("prompt", format.count(rates.prompt_tokens || 0), "computed, not cached");
      this.set("running", format.count(frame.running), `of ${format.count(hello.max_rows)} rows`);
      this.set("waiting", format.count(frame.waiting), frame.lanes.length > 1 ? `in ${frame.lanes.length} lanes` : "");
      for (const key of ["ttft", "itl"]) {
        const one = rates[key] || {};
        const kept = one.with_target ? `; ${format.share((one.met || 0) / one.with_target)} in time` : "";
        const atOnce = key === "itl" && one.count && one.p95 < 5e-5;
        const shown = key === "itl" ? one.mean : one.p50, gap = key === "itl" ? "gaps: " : "";
        this.set(key, atOnce ? "at once" : one.count ? format.seconds(shown) : "–", atOnce ? "answers come whole" : one.count ? `${gap}p95 ${format.seconds(one.p95)}${kept}` : "");
      }
      const all = hello.num_blocks || 1;
      this.set("kv", format.share((blocks.held || 0) / all), `${format.count(blocks.held || 0)} of ${format.count(all)} blocks`);
      const place = ns.History.at(history.steps, time, (step) => step[1]), step = history.steps[place];
      if (step && step[1] > frame.end - 2) {
        const [, , seconds, predicted, steps, prompt, decode, recomputed] = step, factor = predicted ? seconds / predicted : 1;
        const off = factor > 1.25 || factor < 0.8 ? ` (×${factor.toFixed(1)})` : "";
        const work = `${format.counted(Math.round((prompt + decode + recomputed) / steps), "token")}`;
        this.set("step", format.seconds(seconds / steps), `${work}${predicted ? `; predicted ${format.seconds(predicted / steps)}${off}` : ""}`);
      } else this.set("step", "–", "");
    }
  }

  function queues(element, history, frame, onPick) {
    const content = JSON.stringify([frame.lanes.map((lane) => ({ ...lane, oldest: format.seconds(lane.oldest || 0) })), frame.lanes.flatMap((lane) => (lane.first || []).map((number) => history.infoOf(number)?.request_id))]);
    if (element.content === content) return;
    element.content = content;
    const most = Math.max(1, ...frame.lanes.map((lane) => lane.waiting || 0), history.hello.max_rows);
    const lanes = frame.lanes.map((lane) => {
      const waiting = lane.waiting || 0, running = lane.running || 0;
      const reason = waiting ? REASONS[lane.stands_for || "other"] || lane.stands_for : "";
      const behind = lane.behind && lane.behind !== lane.name && waiting ? `, behind ${lane.behind}` : "";
      const deferred = Object.entries(lane.apart || {}).map(([what, count]) => `${format.count(count)} deferred: ${REASONS[what] || what}`).join("; ");
      const first = waiting ? (lane.first || []).slice(0, 6).map((number) => chip(history, number, onPick)) : [];
      return h("div", { class: "lane" },
        h("p", { class: "lane-head" }, h("b", {}, lane.name), h("span", {}, `${format.count(running)} running · ${format.count(waiting)} waiting`)),
        h("div", { class: "lane-bar", "aria-hidden": "true" }, h("i", { class: "running", style: { width: (running / most) * 100 + "%" } }),
          h("i", { class: "waiting", style: { width: (Math.min(waiting, most) / most) * 100 + "%" } })),
        waiting ? h("p", { class: "why" }, `${reason}${behind}; the first waits since ${format.seconds(lane.oldest || 0)}`) : h("p", { class: "why" }, "no request waits"),
        deferred ? h("p", { class: "why" }, deferred) : null,
        first.length ? h("p", { class: "chips" }, ...first, waiting > first.length ? `and ${format.count(waiting - first.length)} more` : null) : null);
    });
    element.replaceChildren(...(lanes.length ? lanes : [h("p", { class: "why" }, "no request waits")]));
  }

  function chip(history, number, onPick) {
    const info = history.infoOf(number) || {};
    if (info.mine === false) return h("span", { class: "chip others" }, "another's");
    const name = info.request_id || `sequence ${number}`;
    return h("button", { type: "button", class: "chip", title: name, onclick: () => onPick(number) }, format.shortened(name, 18));
  }

  function members(element, list) {
    element.hidden = list.length < 1;
    const cells = (name, ...rest) => h("tr", {}, h("th", { scope: "row" }, name), ...rest.map((one) => h("td", {}, one)));
    const rows = list.map((one) => cells(one.name, one.state || "", format.count(one.running || 0), format.count(one.waiting || 0),
      one.blocks ? format.share((one.held_blocks || 0) / one.blocks) : "–", format.count(one.output_tokens_per_s || 0)));
    element.querySelector(".scroll").replaceChildren(h("table", {},
      h("thead", {}, h("tr", {}, ...["engine", "state", "running", "waiting", "KV held", "output tokens / s"].map((one) => h("th", { scope: "col" }, one)))),
      h("tbody", {}, ...rows)));
  }

  function settings(element, list) {
    element.hidden = !list.length;
    element.querySelector(".scroll").replaceChildren(h("table", { class: "words" }, h("tbody", {}, ...list.map((one) =>
      h("tr", {}, h("th", { scope: "row" }, one.name), h("td", {}, one.value || "–"), h("td", {}, one.reason || ""))))));
  }
  ns.panels = { Tiles, queues, members, settings, chip };
})((window.inflight ??= {}));
