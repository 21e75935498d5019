// The requests of a run as a table, to be found by name, and put in order by what became of them; and what happened to
// some of them: who lost its row, and who came in at that moment.
"use strict";
(function (ns) {
  const { format, panels, request } = ns;
  const { h } = format;
  const MAX_SHOWN = 100; // shown at once
  const NAMES = ["request", "lane", "tenant", "arrived", "waited", "first token", "preempted", "in all", "now"];
  const ORDERS = {
    came: (one) => -one.came, batch: (one) => (one.holder ? one.holder[1] : Infinity), waited: (one) => -one.parts.queue,
    total: (one) => -one.parts.total, preempted: (one) => -(one.parts.preempted || 0) - one.lost * 1e-6,
  };

  class RequestTable {
    constructor(element, history, onPick) {
      this.element = element;
      this.history = history;
      this.onPick = onPick;
      this.find = element.querySelector("input");
      this.order = element.querySelector("select");
      this.table = element.querySelector(".scroll");
      for (const control of [this.find, this.order]) control.addEventListener("input", () => (this.isStale = true));
    }
    draw(time) {
      this.isStale = false;
      const wanted = this.find.value.trim().toLowerCase(), order = ORDERS[this.order.value];
      const shown = this.history.mapAt(time), holders = new Map((shown ? shown.holders : []).map((one) => [one[0], one]));
      const found = [];
      for (const [number, known] of this.history.requests) {
        const { info } = known, name = info.request_id || "";
        if ((info.arrival || 0) > time || (wanted && !name.toLowerCase().includes(wanted))) continue;
        const holder = holders.get(number);
        if (this.order.value === "batch" && !holder) continue;
        found.push({ number, known, holder, came: info.arrival || 0, parts: request.account(this.history, known, time), lost: known.preempted.filter((at) => at <= time).length });
      }
      found.sort((one, other) => order(one) - order(other));
      const rows = found.slice(0, MAX_SHOWN).map((one) => this.row(one, time));
      const more = found.length > MAX_SHOWN ? h("p", { class: "why" }, `and ${format.count(found.length - MAX_SHOWN)} more; a part of the name finds them`) : null;
      this.table.replaceChildren(...[h("table", {},
        h("thead", {}, h("tr", {}, ...NAMES.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, ...rows)), more].filter(Boolean));
    }
    row({ number, known, holder, parts, lost, came }, time) {
      const { info } = known, said = (ms) => (ms > 0.05 ? format.seconds(ms / 1e3) : "–");
      const out = parts.preempted ? `${lost || 1}×, ${format.seconds(parts.preempted / 1e3)}` : lost ? `${lost}×` : "–";
      const first = parts.ttft ?? (known.decoded !== null && known.decoded <= time ? (known.decoded - came) * 1e3 : null);
      const values = [info.lane || "", info.tenant || "", `${format.seconds(time - came)} ago`, said(parts.queue), first === null ? "–" : said(first), out, said(parts.total), request.stateOf(known, holder, time)];
      return h("tr", {}, h("th", { scope: "row" }, panels.chip(this.history, number, this.onPick)), ...values.map((one) => h("td", {}, one)));
    }
  }

  // The last times at which a sequence lost its row.
  class Happened {
    constructor(element, history, onPick) {
      Object.assign(this, { element, history, onPick });
    }
    // What a newcomer's prompt takes.
    size(number) {
      const info = this.history.infoOf(number), tokens = info && info.prompt_tokens, { block_size: size } = this.history.hello;
      return tokens && size ? `${format.counted(tokens, "token")}, ${format.counted(Math.ceil(tokens / size), "KV block")}` : "";
    }
    draw(time) {
      const list = this.history.events, last = ns.History.at(list, time, (one) => one.at);
      this.element.hidden = !list.length;
      if (last === this.last && this.first === list[0]) return;
      this.last = last;
      this.first = list[0];
      const chips = (numbers) => numbers.slice(0, 8).map((one) => panels.chip(this.history, one, this.onPick));
      const newcomers = (numbers) => numbers.slice(0, 8).flatMap((one) => [panels.chip(this.history, one, this.onPick), h("span", { class: "why" }, this.size(one))]);
      const rows = list.slice(Math.max(0, last - 11), last + 1).reverse().map(({ at, gone, came }) =>
        h("li", {}, h("b", {}, format.seconds(at - this.history.zero)), ...chips(gone), h("span", {}, gone.length === 1 ? "lost its row" : "lost their rows"),
          ...(came.length ? [h("span", {}, "· came in:"), ...newcomers(came)] : [h("span", { class: "why" }, "· no new requests")])));
      this.element.querySelector("ol").replaceChildren(...(rows.length ? rows : [h("li", {}, "none until now")]));
    }
  }
  Object.assign(ns, { RequestTable, Happened });
})((window.inflight ??= {}));
