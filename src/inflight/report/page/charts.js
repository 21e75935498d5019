// Charts of a report: their data stand in the page, and uPlot draws them as soon as they have room. Names are text always.
"use strict";
(function () {
  // uPlot reads whole pixels from a font, and scales them to the screen.
  const HEIGHT = 190, FONT = '12px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",Arial,sans-serif';
  const COLUMN = 46; // widest, px
  // Kinds of work with a pattern beside their colour: ground, lines on it, and which way these lean.
  const HATCHED = { padding: ["free", "padding", 1], recomputed: ["recomputed", "page", -1] };
  const charts = [];
  let colours = {};

  // -- numbers, as the tables have them -------------------------------------------------------------------------------
  function digits(value) {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 100 || Number.isInteger(value)) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    if (size < 0.001) return value.toExponential(1);
    return String(+value.toPrecision(3));
  }
  function short(value) {
    for (const [size, by, letter] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (Math.abs(value) >= size) return digits(value / by) + letter;
    return digits(value);
  }
  const withUnit = (scale, value) => [digits(value / (scale.factor || 1)), scale.unit].filter(Boolean).join(" ");
  const marks = (scale) => (plot, values) => values.map((one) => (one === null ? "" : short(+(one / (scale.factor || 1)).toPrecision(9))));

  // Round values of a logarithmic axis, as many as suit it.
  function decades(low, high) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const steps = last - first > 4 ? [1] : last - first > 2 ? [1, 3] : [1, 2, 5];
    const all = Array.from({ length: last - first + 1 }, (none, at) => steps.map((step) => step * 10 ** (first + at))).flat();
    return all.filter((one) => one >= low * 0.999 && one <= high * 1.001);
  }
  const rounds = (scale) => (scale.log ? { splits: (u, axis, low, high) => decades(low, high), filter: (u, splits) => splits } : {});

  // -- colours of the page: light, dark, print ------------------------------------------------------------------------
  function read() {
    const style = getComputedStyle(document.documentElement);
    colours = new Proxy({}, { get: (known, name) => (known[name] ??= style.getPropertyValue("--" + name).trim()) });
  }
  function filling(name) {
    if (!HATCHED[name]) return colours[name];
    const [ground, lines, lean] = HATCHED[name], size = 6 * devicePixelRatio;
    const tile = Object.assign(document.createElement("canvas"), { width: size, height: size }), pen = tile.getContext("2d");
    pen.fillStyle = colours[ground];
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = colours[lines];
    pen.lineWidth = size / 3.4;
    for (const from of [-size, 0, size]) {
      pen.moveTo(from, lean > 0 ? size : 0);
      pen.lineTo(from + size, lean > 0 ? 0 : size);
    }
    pen.stroke();
    return pen.createPattern(tile, "repeat");
  }

  // -- what each kind of chart gives to uPlot: data, series, ranges of both axes --------------------------------------
  const line = (one) => ({ stroke: () => colours[one.colour], width: 2, dash: one.dash, points: { show: false } });
  const area = (one, paths) => ({ fill: () => filling(one.colour), stroke: () => colours.card, width: 0.6, points: { show: false }, paths });
  const EDGE = { stroke: "transparent", width: 0, points: { show: false } };

  function lines({ xs, series, x, stepped }) {
    const data = [xs], drawn = [{}], bands = [], paths = stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
    for (const one of series)
      if (one.high) {
        bands.push({ series: [data.length, data.length + 1], fill: () => `color-mix(in srgb, ${colours[one.colour]} 24%, transparent)` });
        data.push(one.high, one.low);
        drawn.push(EDGE, EDGE);
      }
    for (const one of series) {
      data.push(one.values);
      drawn.push({ ...line(one), ...(paths && { paths }) });
    }
    return { data, drawn, bands, across: x.high ? [0, x.high] : [xs[0], xs[xs.length - 1]] };
  }
  // From the top down, each over what is above it.
  function stacked({ series }, xs, paths, across) {
    const data = [xs], drawn = [{}], sums = xs.map(() => 0);
    const tops = series.map((one) => one.values.map((value, place) => (sums[place] += value || 0)));
    for (let place = series.length - 1; place >= 0; place--) {
      data.push(tops[place]);
      drawn.push(area(series[place], paths));
    }
    return { data, drawn, across };
  }
  function columns(plot) {
    const xs = plot.names.map((name, place) => place);
    return stacked(plot, xs, uPlot.paths.bars({ size: [0.8, COLUMN] }), [-0.5, xs.length - 0.5]);
  }
  const groupPlace = (group, place, number) => group + ((place + 0.5) / number - 0.5) * 0.84;
  function groups({ names, series }) {
    const number = series.length;
    const xs = names.flatMap((name, group) => series.map((one, place) => groupPlace(group, place, number)));
    const paths = uPlot.paths.bars({ size: [0.92, COLUMN] });
    const data = series.map((one, place) => xs.map((x, at) => (at % number === place ? one.values[(at - place) / number] : null)));
    return { data: [xs, ...data], drawn: [{}, ...series.map((one) => area(one, paths))], across: [-0.5, names.length - 0.5] };
  }
  function points({ series }) {
    const xs = series.flatMap((one) => one.points.map((point) => point.x));
    const most = Math.max(...xs) * 1.06 || 1;
    return { data: [[0, most], [null, null]], drawn: [{}, { points: { show: false } }], across: [0, most] };
  }
  const KINDS = {
    lines, columns, groups, points,
    stack: (plot) => stacked(plot, plot.xs, uPlot.paths.stepped({ align: 1 }), [plot.xs[0], plot.xs[plot.xs.length - 1]]),
  };

  function heights({ kind, series, limit, y }, data) {
    const seen = kind === "points" ? series.flatMap((one) => one.points.map((point) => point.y)) : data.slice(1).flat();
    const values = [...seen, limit].filter((one) => one !== null && one !== undefined);
    const most = Math.max(...values);
    if (y.log) return [Math.min(...values) / 1.3, most * 1.3];
    if (y.high) return [0, y.high];
    // A whisker may reach far beyond the columns; then its end is left out rather than the columns pressed flat.
    const ends = kind === "groups" ? series.flatMap((one) => one.high || []).filter((one) => one !== null) : [];
    return [0, Math.max(most, Math.min(Math.max(0, ...ends), 2.2 * most)) * 1.09 || 1];
  }

  // -- what is drawn over it ------------------------------------------------------------------------------------------
  function place(u, x, y) {
    return [u.valToPos(x, "x", true), u.valToPos(y, "y", true)];
  }
  function over(u, plot) {
    const pen = u.ctx, ratio = devicePixelRatio;
    pen.save();
    pen.beginPath();
    pen.rect(u.bbox.left, u.bbox.top - 12 * ratio, u.bbox.width + 4 * ratio, u.bbox.height + 12 * ratio);
    pen.clip();
    pen.lineWidth = 1.2 * ratio;
    if (plot.limit !== undefined) {
      pen.strokeStyle = colours.bad;
      pen.setLineDash([5 * ratio, 3 * ratio]);
      stroke(pen, [[u.bbox.left, place(u, 0, plot.limit)[1]], [u.bbox.left + u.bbox.width, place(u, 0, plot.limit)[1]]]);
      pen.setLineDash([]);
    }
    pen.font = FONT.replace("12px", `${12 * ratio}px`);
    if (plot.kind === "groups") whiskers(u, pen, plot, ratio);
    if (plot.kind === "points") plot.series.forEach((one) => curve(u, pen, one, ratio));
    if (plot.labels) above(u, pen, plot, ratio);
    pen.restore();
  }
  function stroke(pen, path) {
    pen.beginPath();
    path.forEach(([x, y], at) => (at ? pen.lineTo(x, y) : pen.moveTo(x, y)));
    pen.stroke();
  }
  // Above a value, where there is room.
  function write(u, pen, words, x, y, room, ratio) {
    const [left, top] = place(u, x, y);
    if (pen.measureText(words).width >= room) return;
    const is_cut = top - 5 * ratio < u.bbox.top; // a whisker that goes on: beside it
    pen.fillStyle = colours.ink;
    pen.textAlign = is_cut ? "left" : "center";
    pen.fillText(words, is_cut ? left + 4 * ratio : left, is_cut ? u.bbox.top + 8 * ratio : top - 5 * ratio);
  }
  function whiskers(u, pen, { names, series, y }, ratio) {
    const room = Math.abs(place(u, groupPlace(0, 1, series.length), 0)[0] - place(u, groupPlace(0, 0, series.length), 0)[0]);
    pen.strokeStyle = colours.ink;
    series.forEach((one, at) => names.forEach((name, group) => {
      const x = groupPlace(group, at, series.length), value = one.values[group], high = one.high && one.high[group];
      if (value !== null) write(u, pen, digits(value / (y.factor || 1)), x, Math.max(value, high || 0), room, ratio);
      if (high === null) return;
      whisker(u, pen, x, one.low[group], high, ratio);
    }));
  }
  function whisker(u, pen, x, from, to, ratio) {
    const [across, low] = place(u, x, from), [, high] = place(u, x, to);
    stroke(pen, [[across, low], [across, high]]);
    for (const end of [low, high]) stroke(pen, [[across - 3 * ratio, end], [across + 3 * ratio, end]]);
  }
  function curve(u, pen, one, ratio) {
    const path = one.points.map((point) => place(u, point.x, point.y));
    pen.strokeStyle = colours[one.colour];
    pen.lineWidth = 2 * ratio;
    pen.setLineDash((one.dash || []).map((length) => length * ratio));
    stroke(pen, path);
    pen.setLineDash([]);
    one.points.forEach((point, at) => {
      pen.save();
      pen.translate(...path[at]);
      pen.scale(ratio * 1.1, ratio * 1.1);
      pen.fillStyle = point.hollow ? colours.card : colours[one.colour];
      pen.lineWidth = 1.6;
      const shape = new Path2D(one.mark);
      pen.fill(shape);
      pen.stroke(shape);
      if (point.crossed) {
        pen.strokeStyle = colours.bad;
        pen.stroke(new Path2D("M-6 -6l12 12m0 -12l-12 12"));
      }
      pen.restore();
    });
  }
  function above(u, pen, { labels, series }, ratio) {
    const room = Math.abs(place(u, 1, 0)[0] - place(u, 0, 0)[0]);
    labels.forEach((label, at) => write(u, pen, label, at, series.reduce((sum, one) => sum + (one.values[at] || 0), 0), room, ratio));
  }

  // -- what the pointer is at -----------------------------------------------------------------------------------------
  function at(u, plot) {
    const { left, top, idx } = u.cursor;
    if (left === undefined || left < 0 || idx === null || idx === undefined) return "";
    const { kind, names, series, x, y } = plot;
    const named = (one, value) => [series.length > 1 ? one.name : "", withUnit(y, value)].filter(Boolean).join(" ");
    if (kind === "points") {
      const near = series.flatMap((one) => one.points.map((point) => [one, point, Math.hypot(u.valToPos(point.x, "x") - left, u.valToPos(point.y, "y") - top)]));
      const [one, point, far] = near.reduce((best, other) => (other[2] < best[2] ? other : best));
      return far > 30 ? "" : [series.length > 1 ? one.name : "", point.name, withUnit(x, point.x), withUnit(y, point.y)].filter(Boolean).join(", ");
    }
    const group = kind === "groups" ? Math.floor(idx / series.length) : idx;
    const head = names ? names[group] : withUnit(x, plot.xs[idx]);
    const values = series.map((one) => [one, one.values[group]]).filter(([, value]) => value !== null && value !== undefined);
    return `${head}: ${values.map(([one, value]) => named(one, value)).join(", ")}`;
  }

  // -- one chart ------------------------------------------------------------------------------------------------------
  class Chart {
    constructor(box) {
      this.box = box;
      this.plot = JSON.parse(box.nextElementSibling.textContent);
      this.plot.series = this.plot.series.map((one) => ({ values: [], points: [], ...one })); // what is empty is left out
      this.readout = box.closest("figure").querySelector(".at");
      new ResizeObserver(() => this.fit()).observe(box);
      box.addEventListener("plot", (event) => this.replace(event.detail));
    }
    // Another plot in its place, as where a slider moves.
    replace(plot) {
      this.plot = { ...plot, series: plot.series.map((one) => ({ values: [], points: [], ...one })) };
      if (this.u) this.u.destroy();
      this.u = undefined;
      this.box.replaceChildren();
      this.fit();
    }
    fit() {
      const width = Math.floor(this.box.clientWidth);
      if (!width) return;
      if (!this.u) this.draw(width);
      else if (this.u.width !== width) this.u.setSize({ width, height: HEIGHT });
    }
    draw(width) {
      const { plot } = this, { data, drawn, bands, across } = KINDS[plot.kind](plot);
      const up = heights(plot, data);
      const label = Object.assign(document.createElement("div"), { className: "up", textContent: plot.y.label });
      this.box.append(label);
      this.u = new uPlot({
        width, height: HEIGHT, padding: [14, 10, 0, 0], legend: { show: false }, axes: this.axes(plot), series: drawn, bands: bands || [],
        scales: { x: { time: false, distr: plot.x.log ? 3 : 1, range: (u, low, high) => this.zoomed(u, low, high, across) },
          y: { distr: plot.y.log ? 3 : 1, range: up } },
        cursor: { y: false, points: { show: false }, drag: { x: plot.kind === "lines" || plot.kind === "stack", y: false } },
        hooks: { draw: [(u) => over(u, plot)], setCursor: [(u) => (this.readout.textContent = at(u, plot))] },
      }, data, this.box);
      this.u.root.setAttribute("aria-hidden", "true"); // the box says what it is, the table what it holds
      this.box.tabIndex = 0;
      this.box.onkeydown = (event) => this.pressed(event);
    }
    // Arrows read values as a pointer does, and say them.
    pressed(event) {
      const { data, cursor } = this.u, xs = this.plot.kind === "points" ? this.stops() : data[0], last = xs.length - 1;
      const step = Math.max(1, Math.round(xs.length / 60)), now = this.stop ?? (event.key === "ArrowLeft" ? last + step : -step);
      const to = { ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.stop = Math.min(last, Math.max(0, to));
      this.readout.removeAttribute("aria-hidden");
      this.readout.setAttribute("aria-live", "polite");
      const left = this.u.valToPos(xs[this.stop], "x"), point = this.plot.kind === "points" && this.points[this.stop];
      this.u.setCursor({ left, top: point ? this.u.valToPos(point.y, "y") : cursor.top < 0 ? 0 : cursor.top });
    }
    stops() {
      this.points = this.plot.series.flatMap((one) => one.points).sort((one, other) => one.x - other.x);
      return this.points.map((one) => one.x);
    }
    // Of the whole, unless a part was dragged over.
    zoomed(u, low, high, across) {
      const [xs] = u.data, is_part = low > xs[0] || high < xs[xs.length - 1];
      return this.u && is_part && low < high && !this.plot.names ? [low, high] : across;
    }
    axes({ names, x, y }) {
      const line = { stroke: () => colours.soft, font: FONT, ticks: { stroke: () => colours.grid, size: 4 }, grid: { stroke: () => colours.grid, width: 1 }, gap: 4 };
      const below = { ...line, grid: { show: false }, label: x.label || undefined, labelSize: 18, labelGap: 0, labelFont: FONT, size: 24, space: 46, values: marks(x), ...rounds(x) };
      if (names) {
        const longest = Math.max(...names.map((name) => name.length)) * 7 + 8;
        below.splits = (u) => {
          const every = Math.max(1, Math.ceil((longest * names.length) / (u.width - 60)));
          return names.map((name, place) => place).filter((place) => place % every === 0);
        };
        below.values = (u, splits) => splits.map((place) => names[place]);
        below.ticks = { show: false };
      }
      return [below, { ...line, size: 46, space: 34, values: marks(y), ...rounds(y) }];
    }
  }

  function redraw() {
    read();
    for (const chart of charts) {
      chart.fit();
      if (chart.u) chart.u.redraw();
    }
  }
  read();
  document.documentElement.classList.add("drawn");
  for (const box of document.querySelectorAll(".plot")) charts.push(new Chart(box));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // On paper everything is light and nothing is folded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open]):not(.id):not(.values)")];
    for (const one of folded) one.open = true;
    document.documentElement.dataset.theme = "light";
    redraw();
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
    delete document.documentElement.dataset.theme;
    redraw();
  });
})();
