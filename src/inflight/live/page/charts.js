// Lines over the shown time: throughput, first tokens, gaps, steps beside what was predicted; drawn by uPlot.
"use strict";
(function (ns) {
  const { format, History } = ns;
  const EVERY = 500; // ms between two drawings of a chart
  const MAX_POINTS = 400; // points of a line

  // title, series [name, colour, dash], how numbers are said, and points of a frame or of a step.
  const CHARTS = [
    { key: "tokens", title: "Tokens per second", say: format.count, of: "frames",
      series: [["output", "s1"], ["prompt", "s2", [6, 3]]],
      values: (frame) => [frame.rates.output_tokens || 0, frame.rates.prompt_tokens || 0] },
    { key: "ttft", title: "Time to first token", say: format.seconds, of: "frames", target: "ttft_target",
      series: [["median", "s3"], ["p95", "s2", [6, 3]]],
      values: ({ rates: { ttft } }) => (ttft && ttft.count ? [ttft.p50, ttft.p95] : [null, null]) },
    { key: "itl", title: "Time between tokens", say: format.seconds, of: "frames", target: "itl_target",
      series: [["median", "s3"], ["p95", "s2", [6, 3]]],
      values: ({ rates: { itl } }) => (itl && itl.count ? [itl.p50, itl.p95] : [null, null]) },
    { key: "steps", title: "Step time: actual and predicted", say: format.seconds, of: "steps",
      series: [["actual", "s1"], ["predicted", "s4", [3, 3]]],
      values: (step) => [step[2] / step[4], step[3] ? step[3] / step[4] : null] },
  ];

  // Round seconds since the beginning.
  function marksOf(low, high, every, zero) {
    const marks = [];
    for (let mark = Math.max(0, Math.ceil((low - zero) / every)) * every; mark + zero <= high; mark += every) marks.push(mark + zero);
    return marks;
  }

  class Charts {
    constructor(element, history, colours) {
      this.history = history;
      this.colours = colours;
      this.parts = CHARTS.map((about) => {
        const box = format.h("div", { class: "chart", role: "img" });
        const now = format.h("span", { class: "now" });
        element.append(format.h("figure", { class: "card" }, format.h("figcaption", {}, format.h("h3", {}, about.title), now), box));
        const part = { about, box, now, plot: null, drawn: 0, width: 0 };
        new ResizeObserver(([entry]) => (part.width = Math.round(entry.contentRect.width))).observe(box);
        return part;
      });
      this.next = 0;
      this.drafts = format.h("figure", { class: "card drafts", hidden: true });
      element.append(this.drafts);
    }
    again() {
      for (const part of this.parts) {
        if (part.plot) part.plot.destroy();
        part.plot = part.said = null;
        part.drawn = 0;
      }
    }
    draw(end, span, now, until) {
      // One after the other, so that no single drawing takes long.
      const part = this.parts[this.next % this.parts.length];
      if (now - part.drawn < EVERY) return;
      part.drawn = now;
      this.drawOne(part, end, span, until);
      if (this.next++ % this.parts.length === 0) this.drawDrafts();
    }
    drawOne(part, end, span, until) {
      const { about, width } = part;
      if (!width) return;
      const data = this.data(about, end, span, until);
      if (!part.plot) {
        part.plot = new uPlot(this.options(about, width), data, part.box);
        part.box.querySelector("canvas").setAttribute("aria-hidden", "true"); // the box has it as text
      }
      if (part.plot.width !== width) part.plot.setSize({ width, height: 130 });
      part.plot.setData(data, false);
      part.plot.setScale("x", { min: end - span, max: end });
      const lastPlace = data[0].length - 1;
      const latest = about.series.map((one, index) => [one[0], data[index + 1][lastPlace]]).filter((one) => one[1] !== null && one[1] !== undefined);
      const said = latest.map(([name, value]) => `${name} ${about.say(value)}`).join(" · ");
      if (said !== part.said) {
        part.said = said;
        part.box.setAttribute("aria-label", `${about.title}: ${said || "nothing yet"}`);
        part.now.replaceChildren(...latest.map(([name, value]) => {
          const [, colour, dash] = about.series.find((one) => one[0] === name);
          return format.h("span", { class: "key" }, format.h("i", { class: dash ? "line dashed" : "line", style: { color: this.colours.of[colour] } }), `${name} ${about.say(value)}`);
        }));
      }
    }
    data(about, end, span, until) {
      const list = this.history[about.of], time = about.of === "steps" ? (one) => one[1] : (one) => one.end;
      const first = Math.max(0, History.at(list, end - span, time)), last = History.at(list, until, time);
      const stride = Math.max(1, Math.ceil((last - first + 1) / MAX_POINTS));
      const data = [[], ...about.series.map(() => [])];
      for (let place = first - (first % stride); place <= last; place += stride) {
        const one = list[Math.max(0, place)];
        if (!one) continue;
        data[0].push(time(one));
        about.values(one).forEach((value, index) => data[index + 1].push(value));
      }
      const target = about.target ? this.target(about.target) : 0;
      if (about.target) data.push(data[0].map(() => target || null));
      return data;
    }
    // The most frequent latency target in seconds; 0: none.
    target(name) {
      const counts = new Map();
      let seen = 0;
      for (const { info } of this.history.requests.values()) {
        if (info[name]) counts.set(info[name], (counts.get(info[name]) || 0) + 1);
        if (++seen > 500) break;
      }
      return [...counts].sort((one, other) => other[1] - one[1]).map((one) => one[0])[0] || 0;
    }
    options(about, width) {
      const { of } = this.colours;
      const series = about.series.map(([label, colour, dash]) => ({ label, stroke: of[colour], width: 1.8, dash, points: { show: false }, spanGaps: false }));
      if (about.target) series.push({ label: "target", stroke: of.bad, width: 1.2, dash: [2, 3], points: { show: false } });
      const axis = { stroke: of.soft, grid: { stroke: of.grid, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
      return {
        width, height: 130, cursor: { show: false }, legend: { show: false }, padding: [8, 16, 0, 0],
        scales: { x: { time: false }, y: { range: (plot, low, high) => [0, Math.max((high || 0) * 1.12, 1e-3)] } },
        series: [{}, ...series],
        axes: [
          { ...axis, size: 22, space: 64, splits: (plot, index, low, high, every) => marksOf(low, high, every, this.history.zero),
            values: (plot, marks) => marks.map((mark) => `${+(mark - this.history.zero).toFixed(2)} s`) },
          { ...axis, size: 54, space: 32, values: (plot, marks) => marks.map(about.say) },
        ],
      };
    }
    // How many draft tokens of a chunk were accepted.
    drawDrafts() {
      const { accepted, drafted } = this.history;
      this.drafts.hidden = !drafted;
      if (!drafted) return;
      const { h } = format, chunks = [...accepted].map((one) => one || 0), all = chunks.reduce((sum, one) => sum + one, 0) || 1;
      const most = Math.max(...chunks, 1), right = chunks.reduce((sum, one, place) => sum + one * place, 0);
      this.drafts.replaceChildren(
        h("figcaption", {}, h("h3", {}, "Accepted draft tokens per step"), h("span", { class: "now" }, `${format.share(right / drafted)} of ${format.count(drafted)}; ${(1 + right / all).toFixed(2)} tokens a step`)),
        h("ol", { class: "bars", start: "0" }, ...chunks.slice(0, 12).map((one, place) =>
          h("li", { title: `${place} accepted: ${format.counted(one, "chunk")}` },
            h("i", { style: { height: Math.max(1, (one / most) * 84) + "px" } }), h("span", {}, String(place))))));
    }
  }
  ns.Charts = Charts;
})((window.inflight ??= {}));
