// The batch over time: rows as lanes, in each what was computed there, coloured by whose it is. Above the rows how many
// wait. Drawn into a picture that moves on with time, so that only what is new is drawn.
"use strict";
(function (ns) {
  const { format, History } = ns;
  const LEFT = 34, RIGHT = 8, TOP = 6, QUEUE = 34, AXIS = 20;
  const LOW = 0.62; // of a row's height: single tokens
  const FONT = "11px system-ui, sans-serif";
  const STEP_SPACE = 7; // pixels that a step has on average, to be drawn

  class BatchPicture {
    constructor(figure, history, colours, onPick) {
      this.canvas = figure.querySelector("canvas");
      this.tip = figure.querySelector(".tip");
      this.legend = figure.querySelector(".legend");
      this.history = history;
      this.colours = colours;
      this.onPick = onPick;
      this.selected = null;
      this.picture = document.createElement("canvas");
      // Without transparency: pictures that lie on each other are copied, and not blended.
      this.pen = this.canvas.getContext("2d", { alpha: false });
      this.canvas.style.visibility = "hidden"; // black until it is drawn
      this.ink = this.picture.getContext("2d", { alpha: false });
      this.words = new Map(); // of the axis, each as a picture: text is dear to draw
      this.drawnTo = null;
      this.resized = true;
      this.places = []; // of each row, the run that was drawn last
      new ResizeObserver(() => (this.resized = true)).observe(this.canvas.parentElement);
      const at = (event) => [event.offsetX, event.offsetY];
      this.canvas.addEventListener("mousemove", (event) => this.point(...at(event)));
      this.canvas.addEventListener("mouseleave", () => (this.tip.hidden = true));
      this.canvas.addEventListener("click", (event) => {
        const run = this.under(...at(event));
        this.onPick(run ? run.sequence : null);
      });
    }
    get rows() {
      const maxRows = this.history.hello ? this.history.hello.max_rows : 0;
      return Math.max(1, Math.min(maxRows || 1, Math.max(this.history.rows.length, Math.min(maxRows, 8))));
    }
    // Sizes, of the width that there is, where that or the rows have changed: to ask costs a layout.
    fit() {
      const rows = this.rows;
      if (!this.resized && rows === this.fitted) return;
      this.resized = false;
      const width = Math.max(200, this.canvas.parentElement.clientWidth), scale = window.devicePixelRatio || 1;
      this.width = width;
      this.fitted = rows;
      this.scale = scale;
      this.rowHeight = Math.max(2, Math.min(20, Math.floor((width < 500 ? 300 : 380) / rows)));
      this.plotHeight = QUEUE + this.rowHeight * rows;
      this.height = TOP + this.plotHeight + AXIS;
      this.plotWidth = width - LEFT - RIGHT;
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(this.height * scale);
      this.canvas.style.height = this.height + "px";
      this.picture.width = Math.max(1, Math.round(this.plotWidth * scale));
      this.picture.height = Math.round(this.plotHeight * scale);
      this.drawnTo = null;
    }
    again() {
      this.drawnTo = null;
      this.resized = true;
    }
    select(number) {
      this.selected = number;
      this.drawnTo = null;
    }
    // Shows `span` seconds that end at `end`, and what was there at `until`: what comes later is not seen yet.
    draw(end, span, until) {
      this.fit();
      this.canvas.style.visibility = "";
      const { history, picture } = this;
      const perPixel = span / picture.width;
      const column = Math.round(end / perPixel), seen = Math.min(column, Math.round(until / perPixel));
      const first = column - picture.width;
      let from = first;
      const last = this.drawnTo;
      const goes = last !== null && this.span === span && column >= last.column && column - last.column < picture.width && seen >= last.seen;
      if (goes) {
        const changed = isFinite(history.dirtyFrom) ? Math.floor(history.dirtyFrom / perPixel) - 1 : Infinity;
        from = Math.max(first, Math.min(last.seen, changed));
      }
      history.dirtyFrom = Infinity;
      this.drawnTo = { column, seen };
      this.span = span;
      if (from < seen) this.inTurns(from, seen, (start, end, base) => this.strip(start, end, perPixel, base));
      const empty = goes ? Math.max(seen, Math.min(last.column, column)) : Math.max(seen, first);
      if (empty < column || !goes) this.inTurns(Math.max(seen, first), column, (start, end, base) => this.ground(start, end, base));
      this.compose(column * perPixel, span, first);
      this.shown = { end: column * perPixel, span, until };
    }
    // The picture is a ring of columns, so that nothing in it moves: a stretch may go over its end.
    inTurns(from, to, draw) {
      const width = this.picture.width;
      while (from < to) {
        const base = Math.floor(from / width) * width, end = Math.min(to, base + width);
        draw(from, end, base);
        from = end;
      }
    }
    // Rows without anything.
    ground(from, to, base) {
      const pen = this.ink, x = from - base, width = to - from, height = this.rowHeight * this.scale;
      pen.fillStyle = this.colours.of.card;
      pen.fillRect(x, 0, width, this.picture.height);
      pen.fillStyle = this.colours.of.free;
      for (let row = 0; row < this.fitted; row++) pen.fillRect(x, QUEUE * this.scale + row * height, width, height - this.gap);
    }
    get gap() {
      const height = this.rowHeight * this.scale;
      return height >= 5 ? Math.max(1, Math.round(this.scale * 0.75)) : 0;
    }
    // Draws columns from … to anew. Columns count from time 0; `first` is the one at the ring's beginning.
    strip(from, to, perPixel, first) {
      const pen = this.ink, { colours, history, scale, gap } = this;
      const x0 = from - first, width = to - from;
      const height = this.rowHeight * scale, top = QUEUE * scale;
      pen.fillStyle = colours.of.card;
      pen.fillRect(x0, 0, width, this.picture.height);
      pen.save();
      pen.beginPath();
      pen.rect(x0, 0, width, this.picture.height);
      pen.clip();
      pen.fillStyle = colours.of.free;
      if (gap) for (let row = 0; row < this.fitted; row++) pen.fillRect(x0, top + row * height, width, height - gap);
      else pen.fillRect(x0, top, width, height * this.fitted);
      const timeFrom = from * perPixel, timeTo = to * perPixel, infoOf = (number) => history.infoOf(number);
      for (let row = 0; row < this.fitted; row++) {
        const runs = history.rows[row];
        if (!runs) continue;
        // Where the last drawing stopped is near where this one does.
        let place = Math.min(this.places[row] || 0, runs.length - 1);
        while (place + 1 < runs.length && runs[place + 1].start <= timeTo) place++;
        while (place >= 0 && runs[place].start > timeTo) place--;
        this.places[row] = Math.max(0, place);
        for (; place >= 0 && runs[place].end >= timeFrom; place--) {
          const run = runs[place], tall = run.work === 0 || run.work === 2;
          const left = run.start / perPixel - first, right = Math.max(run.end / perPixel - first, left + 0.6);
          const full = height - gap, own = tall || height < 5 ? full : Math.max(2, full * LOW);
          pen.globalAlpha = this.selected !== null && run.sequence !== this.selected ? 0.18 : height < 5 && !tall ? 0.85 : 1;
          pen.fillStyle = colours.run(run.sequence, run.work, infoOf);
          pen.fillRect(left, top + row * height + full - own, right - left, own);
          if (run.work === 2 && height >= 5) this.stripes(pen, left, top + row * height, right - left, full);
          if (gap && right - left > 3 && (!place || runs[place - 1].sequence !== run.sequence)) {
            pen.fillStyle = colours.of.card;
            pen.fillRect(left, top + row * height, Math.max(1, scale), height);
          }
        }
      }
      pen.globalAlpha = 1;
      this.waiting(pen, timeFrom, timeTo, perPixel, first);
      this.stepLines(pen, timeFrom, timeTo, perPixel, first, top);
      pen.restore();
    }
    stripes(pen, left, top, width, height) {
      pen.save();
      pen.beginPath();
      pen.rect(left, top, width, height);
      pen.clip();
      pen.strokeStyle = this.colours.of.card;
      pen.lineWidth = 1.2 * this.scale;
      pen.beginPath();
      for (let x = Math.floor((left - height) / 6) * 6; x < left + width; x += 6 * this.scale) {
        pen.moveTo(x, top + height);
        pen.lineTo(x + height, top);
      }
      pen.stroke();
      pen.restore();
    }
    waiting(pen, timeFrom, timeTo, perPixel, first) {
      const { frames } = this.history, floor = (QUEUE - 6) * this.scale, ceiling = 4 * this.scale;
      this.most = Math.max(this.most || 1, 1);
      pen.fillStyle = this.colours.of.waiting;
      pen.globalAlpha = 0.75;
      let newest = 1;
      for (let place = Math.max(0, History.at(frames, timeFrom)); place < frames.length; place++) {
        const frame = frames[place];
        if (frame.start > timeTo) break;
        newest = Math.max(newest, frame.waiting);
        if (!frame.waiting) continue;
        const height = ((floor - ceiling) * Math.min(frame.waiting, this.most)) / this.most;
        const left = Math.floor(frame.start / perPixel - first);
        pen.fillRect(left, floor - height, Math.max(1, Math.ceil(frame.end / perPixel - first) - left), height);
      }
      pen.globalAlpha = 1;
      if (newest > this.most) {
        this.most = newest; // the whole strip is drawn anew to the new height
        this.drawnTo = null;
      }
    }
    stepLines(pen, timeFrom, timeTo, perPixel, first, top) {
      const { steps } = this.history;
      let place = History.at(steps, timeTo, (step) => step[0]), count = 0;
      const marks = [];
      for (; place >= 0 && steps[place][1] >= timeFrom; place--) {
        if (steps[place][4] === 1) marks.push(steps[place][0]);
        count += steps[place][4];
      }
      if (!count || (timeTo - timeFrom) / perPixel / count < STEP_SPACE * this.scale) return;
      pen.fillStyle = this.colours.of.card;
      pen.globalAlpha = 0.55;
      for (const time of marks) pen.fillRect(Math.round(time / perPixel - first), top, Math.max(0.7, this.scale * 0.6), this.picture.height);
      pen.globalAlpha = 1;
    }
    compose(end, span, first) {
      const { pen, colours, scale } = this;
      pen.setTransform(1, 0, 0, 1, 0, 0);
      pen.fillStyle = colours.of.card;
      pen.fillRect(0, 0, this.canvas.width, Math.round(TOP * scale));
      pen.fillRect(0, 0, Math.round(LEFT * scale), this.canvas.height);
      pen.fillRect(this.canvas.width - Math.round(RIGHT * scale) - 1, 0, Math.round(RIGHT * scale) + 1, this.canvas.height);
      pen.fillRect(0, Math.round((TOP + this.plotHeight) * scale) - 1, this.canvas.width, this.canvas.height);
      const { width, height } = this.picture, turn = ((first % width) + width) % width;
      const left = Math.round(LEFT * scale), top = Math.round(TOP * scale);
      pen.drawImage(this.picture, turn, 0, width - turn, height, left, top, width - turn, height);
      if (turn) pen.drawImage(this.picture, 0, 0, turn, height, left + width - turn, top, turn, height);
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.font = FONT;
      pen.drawImage(this.margin(), 0, 0, LEFT, this.height);
      pen.fillStyle = colours.of.soft;
      pen.fillRect(LEFT, TOP + QUEUE - 4, this.plotWidth, 0.5);
      this.axis(pen, end, span);
    }
    // Numbers of rows, and of those that wait at most; kept, since text is dear to draw.
    margin() {
      const key = [this.fitted, this.rowHeight, this.scale, this.most, this.colours.of.soft].join();
      if (this.marginKey === key) return this.marginPicture;
      this.marginKey = key;
      const kept = (this.marginPicture = document.createElement("canvas")), { scale } = this;
      kept.width = Math.round(LEFT * scale);
      kept.height = Math.round(this.height * scale);
      const pen = kept.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.font = FONT;
      pen.fillStyle = this.colours.of.soft;
      pen.textBaseline = "middle";
      pen.textAlign = "right";
      pen.fillText(format.count(this.most || 0), LEFT - 6, TOP + 8);
      const every = this.rowHeight >= 12 ? 1 : this.rowHeight >= 8 ? 2 : this.rowHeight >= 4 ? 8 : 32;
      for (let row = 0; row < this.fitted; row += every)
        pen.fillText(String(row), LEFT - 6, TOP + QUEUE + (row + 0.5) * this.rowHeight);
      return kept;
    }
    axis(pen, end, span) {
      const bottom = TOP + this.plotHeight;
      const every = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60].find((one) => (one / span) * this.plotWidth >= 64) || 60;
      const zero = this.history.zero, begin = end - span;
      for (let mark = Math.ceil((begin - zero) / every) * every + zero; mark <= end + 1e-9; mark += every) {
        const x = LEFT + ((mark - begin) / span) * this.plotWidth;
        if (mark - zero < -1e-9) continue;
        pen.fillRect(x, bottom, 0.5, 4);
        if (x > LEFT + 8 && x < this.width - 18) this.word(pen, this.mark(mark - zero, every), x, bottom + 6);
      }
    }
    // Centred at x, below y.
    word(pen, text, x, y) {
      const key = [text, this.scale, this.colours.of.soft, this.colours.of.card].join();
      let kept = this.words.get(key);
      if (!kept) {
        if (this.words.size > 400) this.words.clear();
        kept = format.h("canvas", { width: Math.ceil(64 * this.scale), height: Math.ceil(14 * this.scale) });
        const ink = kept.getContext("2d", { alpha: false });
        ink.fillStyle = this.colours.of.card;
        ink.fillRect(0, 0, kept.width, kept.height);
        ink.scale(this.scale, this.scale);
        Object.assign(ink, { font: FONT, fillStyle: this.colours.of.soft, textAlign: "center", textBaseline: "top" });
        ink.fillText(text, 32, 0);
        this.words.set(key, kept);
      }
      pen.drawImage(kept, x - 32, y, kept.width / this.scale, kept.height / this.scale);
    }
    mark(time, every) {
      if (every < 1) return time.toFixed(1) + " s";
      const whole = Math.round(time);
      if (whole < 120) return whole + " s";
      const parts = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60].map((one) => String(one).padStart(2, "0"));
      return parts[0] === "00" ? parts.slice(1).join(":") : parts.join(":");
    }
    under(x, y) {
      if (!this.shown) return null;
      const row = Math.floor((y - TOP - QUEUE) / this.rowHeight);
      if (row < 0 || row >= this.fitted || x < LEFT || x > this.width - RIGHT) return null;
      const { end, span, until } = this.shown, time = end - span + ((x - LEFT) / this.plotWidth) * span;
      return time <= until ? this.history.runAt(row, time) : null;
    }
    point(x, y) {
      const run = this.under(x, y);
      this.canvas.style.cursor = run ? "pointer" : "default";
      this.tip.hidden = !run;
      if (!run) return;
      const info = this.history.infoOf(run.sequence) || {};
      const name = info.mine === false ? "another tenant's request" : info.request_id || `sequence ${run.sequence}`;
      const about = [ns.WORK_NAMES[run.work], run.tokens ? format.counted(run.tokens, "token") : "", format.seconds(run.end - run.start)];
      const whose = [info.lane, info.tenant].filter(Boolean).join(" · ");
      this.tip.replaceChildren(format.h("b", {}, format.shortened(name)), format.h("span", {}, about.filter(Boolean).join(", ")));
      if (whose) this.tip.append(format.h("span", {}, whose));
      const room = this.canvas.clientWidth - 240;
      this.tip.style.left = Math.max(0, Math.min(x + 14, room)) + "px";
      this.tip.style.top = y + 16 + "px";
    }
    showLegend() {
      const legend = this.colours.legend().flat().join() + this.colours.mode + this.colours.of.waiting;
      if (legend === this.drawnLegend) return;
      this.drawnLegend = legend;
      const { h } = format, swatch = (style, words, extra = "") =>
        h("span", { class: "key" }, h("i", { class: "swatch " + extra, style }), words);
      const keys = this.colours.legend().map(([colour, words]) => swatch({ background: colour }, words));
      if (this.colours.mode !== "work")
        keys.push(swatch({}, "tall: a prompt's chunk", "tall"), swatch({}, "low: a next token", "low"), swatch({}, "striped: recomputed", "striped"),
          swatch({ background: this.colours.of.idle }, "in batch, idle this step"));
      keys.push(swatch({ background: this.colours.of.waiting }, "waiting"));
      this.legend.replaceChildren(...keys);
    }
    describe(frame) {
      const rows = `${frame.running} of ${this.history.hello.max_rows} rows in use, ${frame.waiting} waiting`;
      this.canvas.setAttribute("aria-label", `The batch over time: each lane is a row. Now ${rows}. The list of requests below has them as buttons.`);
    }
  }
  ns.BatchPicture = BatchPicture;
})((window.inflight ??= {}));
