// One request: where its time went, what it holds, and who was computed beside it.
"use strict";
(function (ns) {
  const { format, panels, account: drawn } = ns;
  const { h } = format;

  // Its end, unless that lies ahead of what is shown.
  function endOf(known, time) {
    return known.ended && known.ended.at <= time + 0.2 ? known.ended : null;
  }

  // In milliseconds: as the engine reported it, or as far as the frames show.
  function account(history, known, time) {
    const ended = endOf(known, time), account = ended && ended.account;
    if (account) return { ...account, exact: true };
    const seen = (at) => (at !== null && at <= time ? at : null);
    const end = ended ? ended.at : time, first = seen(known.first), decoded = seen(known.decoded);
    const came = Math.min(known.info.arrival || first || end, end);
    const ms = (from, to) => Math.max(0, (to - from) * 1e3);
    const away = known.preempted.map((at, place) => [at, Math.min(known.back[place] ?? end, end)]).filter(([at]) => at <= end);
    const out = (from, to) => away.reduce((sum, [at, back]) => sum + ms(Math.max(at, from), Math.min(back, to)), 0);
    const prefill = first === null ? 0 : ms(first, decoded ?? end) - out(first, decoded ?? end);
    const decode = decoded === null ? 0 : ms(decoded, end) - out(decoded, end);
    return { queue: ms(came, first ?? end), prefill, decode, preempted: first === null ? 0 : out(first, end), other: 0, total: ms(came, end), exact: false };
  }

  function stateOf(known, holder, time) {
    const ended = endOf(known, time);
    if (ended) return `ended: ${ended.reason || "—"}`;
    if (holder) return `in row ${holder[1]}`;
    if (known.first === null || known.first > time) return "waiting";
    return known.preempted.some((at) => at <= time) ? "preempted, or between rows" : "not in the batch now";
  }

  // The engine's account, and what was waited for, as text. title: "" where it is the only one.
  function accountOf(parts, title, said) {
    const { reasons, behind } = drawn.waits(parts);
    return h("section", {}, title ? h("h3", {}, title) : "", drawn.bar(parts, parts.total), drawn.words(parts), h("p", { class: "why" }, said),
      reasons.length ? h("div", {}, h("h3", {}, "What it waited for"), h("ul", { class: "waits" }, ...reasons.map((one) => h("li", {}, one))), behind ? h("p", { class: "why" }, `Behind lanes: ${behind}.`) : "") : "");
  }

  // living: the engine's account of it until now, where it was asked.
  function show(element, run, number, time, onPick, onClose, living) {
    const { history } = run, known = history.requests.get(number);
    if (!known) return false;
    const { info } = known, ended = endOf(known, time), parts = living && !ended ? { ...living, exact: true } : account(history, known, time);
    const shown = history.mapAt(time), holder = shown && shown.holders.find((one) => one[0] === number);
    const name = info.mine === false ? "another tenant's request" : info.request_id || `sequence ${number}`;
    const state = stateOf(known, holder, time), lost = known.preempted.filter((at) => at <= time);
    const whole = !ended && known.ended && known.ended.account; // a replay knows how it will end
    const facts = [
      ["lane", info.lane], ["tenant", info.tenant], ["prompt", info.prompt_tokens ? format.counted(info.prompt_tokens, "token") : ""],
      ["answer", ended ? format.counted(ended.output_tokens || 0, "token") : holder ? format.counted(Math.max(0, holder[2] - (info.prompt_tokens || 0)), "token") + " so far" : ""],
      ["first token", parts.ttft !== null && parts.ttft !== undefined ? format.seconds(parts.ttft / 1e3) : ""],
      ["from the cache", parts.cached_tokens ? format.counted(parts.cached_tokens, "token") : ""],
      ["computed again", parts.recomputed_tokens ? format.counted(parts.recomputed_tokens, "token") : whole && whole.recomputed_tokens ? `${format.counted(whole.recomputed_tokens, "token")} by its end` : ""],
      ["arrived", info.arrival ? `at ${format.seconds(info.arrival - history.zero)}` : ""],
      ["preempted", lost.length ? `${format.counted(lost.length, "time")}: at ${lost.slice(0, 6).map((at) => format.seconds(at - history.zero)).join(", ")}` : ""],
      ["KV blocks", holder ? `${holder[4]}${holder[5] ? `, ${holder[5]} of them shared` : ""}` : ended ? "given up" : ""],
      ["targets", [info.ttft_target && `first token ${format.seconds(info.ttft_target)}`, info.itl_target && `between tokens ${format.seconds(info.itl_target)}`, info.tpot_target && `per output token ${format.seconds(info.tpot_target)} on average`].filter(Boolean).join(", ")],
    ].filter(([, value]) => value);
    const total = format.seconds(parts.total / 1e3);
    const until = ended ? `${total} in all, as the engine counted it.` : parts.exact ? `${total} until now, as the engine counts it.` : `${total} until now, as far as it can be seen${whole ? "" : "; the engine's own account comes with its end"}.`;
    const beside = history.neighbours(number).slice(0, 8);
    const shownParts = [
      h("button", { type: "button", class: "close", "aria-label": "Close", onclick: onClose }, "×"),
      h("p", { class: "over" }, `request ${info.number ?? number} · ${state}`),
      h("h2", { title: name }, name),
      accountOf(parts, "", until),
      whole ? accountOf(whole, "At its end", `${format.seconds(whole.total / 1e3)} in all, as the engine counted it; it ends at ${format.seconds(known.ended.at - history.zero)}.`) : null,
      h("dl", { class: "facts" }, ...facts.flatMap(([key, value]) => [h("dt", {}, key), h("dd", {}, value)])),
      beside.length ? h("div", {}, h("h3", {}, "Computed beside it"), h("p", { class: "chips" }, ...beside.map(([one]) => panels.chip(history, one, onPick)))) : null,
    ];
    element.replaceChildren(...shownParts.filter(Boolean));
    return true;
  }
  ns.request = { show, account, stateOf };
})((window.inflight ??= {}));
