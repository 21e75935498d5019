// A request's account of time, as the engine reports it: a bar of its parts, their lengths as text, and the reasons for waiting.
"use strict";
(function (ns) {
  const { format } = ns;
  const { h } = format;
  const PARTS = [["queue", "waiting"], ["prefill", "prompt"], ["decode", "answer"], ["preempted", "preempted"], ["other", "other"]];
  const REASONS = {
    rows: "no row is free", blocks: "too few KV blocks can be had", budget: "the step has no tokens left", share: "its share is used up",
    window: "the batch in flight", grammar: "a grammar is compiled", adapter: "its adapter is not in memory",
    kv: "keys and values are on their way", other: "the step in flight",
  };

  // parts: milliseconds by the names of PARTS, and their total.
  function bar(parts, total) {
    const all = Math.max(total, 1e-9);
    const said = PARTS.filter(([key]) => parts[key] > 0).map(([key, words]) => `${words} ${format.seconds(parts[key] / 1e3)}`).join(", ");
    return h("div", { class: "account", role: "img", "aria-label": said || "no time yet" },
      ...PARTS.map(([key]) => h("i", { class: "part-" + key, style: { width: ((parts[key] || 0) / all) * 100 + "%" } })));
  }

  // The same as text, with the swatches of the bar.
  function words(parts) {
    return h("ul", { class: "parts" }, ...PARTS.filter(([key]) => parts[key] > 0.005).map(([key, said]) =>
      h("li", {}, h("i", { class: "swatch part-" + key }), `${said} `, h("b", {}, format.seconds(parts[key] / 1e3)))));
  }

  // What was waited for, and behind which lanes, longest first.
  function waits(parts) {
    const longest = (counts) => Object.entries(counts || {}).filter(([, ms]) => ms > 0.005).sort((one, other) => other[1] - one[1]);
    return {
      reasons: longest(parts.queued_by).map(([reason, ms]) => `${format.seconds(ms / 1e3)}: ${REASONS[reason] || reason}`),
      behind: longest(parts.queued_behind).map(([lane, ms]) => `${lane} ${format.seconds(ms / 1e3)}`).join(", "),
    };
  }
  ns.account = { PARTS, REASONS, bar, words, waits };
})((window.inflight ??= {}));
