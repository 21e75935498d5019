// KV memory as maps: a cell for each block (or a few), coloured by who holds it; the device's, and under it those of the
// host and of a folder. Free, held, shared, kept and moving blocks differ in pattern as well; a bar sums the device up.
"use strict";
(function (ns) {
  const { format } = ns;
  const { h } = format;
  const FREE = -3, EVICTABLE = -2, SHARED = -1, OTHERS = -4, MOVING = -5;
  const TALLEST = { device: 190, tier: 84 }; // pixels

  // One map: cells in rows, drawn in stretches that are alike.
  class CellMap {
    constructor(canvas, tallest, history, colours, onPick) {
      Object.assign(this, { canvas, tallest, history, colours });
      this.resized = true;
      new ResizeObserver(() => (this.resized = true)).observe(canvas.parentElement);
      canvas.addEventListener("click", (event) => {
        const owner = this.ownerAt(event.offsetX, event.offsetY);
        if (owner !== null && owner >= 0) onPick(owner);
      });
    }
    again() {
      this.drawn = null;
      this.resized = true;
    }
    fit(cells) {
      if (!this.resized && cells === this.cells) return;
      this.resized = false;
      const width = Math.max(160, this.canvas.parentElement.clientWidth), scale = window.devicePixelRatio || 1;
      let size = Math.max(3, Math.min(18, Math.floor(Math.sqrt((width * this.tallest) / Math.max(1, cells)))));
      while (size > 3 && Math.ceil(cells / Math.floor(width / size)) * size > this.tallest) size -= 1;
      const columns = Math.max(1, Math.floor(width / size)), height = Math.max(1, Math.ceil(cells / columns)) * size;
      Object.assign(this, { cells, size, columns, drawn: null, side: Math.max(1, Math.round(size * scale)) });
      this.canvas.width = columns * this.side;
      this.canvas.height = Math.max(1, Math.ceil(cells / columns)) * this.side;
      this.canvas.style.width = columns * size + "px";
      this.canvas.style.height = height + "px";
      this.patterns = new Map();
    }
    // shown: what the map is of; the same one is drawn once.
    draw(shown, map, cells, selected) {
      this.fit(cells);
      if (this.drawn === shown) return;
      this.drawn = shown;
      this.map = map;
      const pen = this.canvas.getContext("2d"), { side, columns } = this;
      pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
      let place = 0;
      for (let index = 0; index < map.length; index += 2) {
        const owner = map[index], end = Math.min(cells, place + map[index + 1]);
        pen.globalAlpha = selected === null || owner === selected ? 1 : 0.22;
        pen.fillStyle = this.filling(pen, owner);
        while (place < end) {
          const row = Math.floor(place / columns), column = place % columns, length = Math.min(end - place, columns - column);
          pen.fillRect(column * side, row * side, length * side, side);
          place += length;
        }
      }
      pen.globalAlpha = 1;
      this.lines(pen, Math.ceil(cells / columns));
    }
    // Between the cells.
    lines(pen, rows) {
      const { side, columns } = this, gap = side >= 5 ? Math.max(1, Math.round(side / 14)) : 0;
      if (!gap) return;
      for (let column = 1; column <= columns; column++) pen.clearRect(column * side - gap, 0, gap, rows * side);
      for (let row = 1; row <= rows; row++) pen.clearRect(0, row * side - gap, columns * side, gap);
    }
    filling(pen, owner) {
      const { of } = this.colours;
      if (owner === FREE) return of.free;
      if (owner === OTHERS) return of.padding;
      if (owner >= 0) return this.colours.run(owner, 1, (number) => this.history.infoOf(number));
      const found = this.patterns.get(owner) || this.pattern(pen, owner);
      this.patterns.set(owner, found);
      return found;
    }
    // A cell with a dot, a hole or a half.
    pattern(pen, owner) {
      const { side } = this, { of } = this.colours, tile = h("canvas", { width: side, height: side }), ink = tile.getContext("2d");
      ink.fillStyle = owner === SHARED ? of.shared : of.free;
      ink.fillRect(0, 0, side, side);
      ink.fillStyle = owner === SHARED ? of.card : owner === MOVING ? of.waiting : of.cached;
      const dot = Math.max(1, Math.round(side * (owner === SHARED ? 0.28 : 0.5))), edge = Math.round((side - dot) / 2);
      if (owner === MOVING) ink.fillRect(0, 0, Math.ceil(side / 2), side);
      else ink.fillRect(edge, edge, dot, dot);
      return pen.createPattern(tile, "repeat");
    }
    ownerAt(x, y) {
      if (!this.map) return null;
      const column = Math.floor(x / this.size);
      let place = Math.floor(y / this.size) * this.columns + column;
      if (column >= this.columns) return null;
      for (let index = 0; index < this.map.length; index += 2) {
        place -= this.map[index + 1];
        if (place < 0) return this.map[index];
      }
      return null;
    }
  }

  // A tier behind the device: its map, and its counts as text.
  class Tier {
    constructor(element, name, history, colours, onPick) {
      this.canvas = h("canvas", { role: "img" });
      this.about = h("p", { class: "about" });
      this.element = h("div", { class: "tier", hidden: true }, h("h4", {}, name), h("div", { class: "plot" }, this.canvas), this.about);
      element.append(this.element);
      this.name = name;
      this.cells = new CellMap(this.canvas, TALLEST.tier, history, colours, onPick);
    }
    draw(part, selected) {
      this.element.hidden = !part;
      if (!part) return;
      const perCell = part.per_cell || 1, kept = part.kept || 0, wanted = part.wanted || 0, others = part.others || 0;
      this.cells.draw(part, part.map || [], Math.ceil(part.blocks / perCell), selected);
      const free = part.blocks - kept - wanted - others - (part.moving || 0);
      const said = [kept && `${format.count(kept)} kept`, wanted && `${format.count(wanted)} for preempted requests`,
        part.moving && `${format.count(part.moving)} moving`, others && `${format.count(others)} of other models`, `${format.count(free)} free`];
      const words = `${said.filter(Boolean).join(" · ")}${perCell > 1 ? `; a cell is ${format.count(perCell)} blocks` : ""}`;
      format.setText(this.about, words);
      if (this.said !== words) this.canvas.setAttribute("aria-label", `${this.name}: ${words}`);
      this.said = words;
    }
  }

  class MemoryMap {
    constructor(figure, history, colours, onPick) {
      this.bar = figure.querySelector(".bar");
      this.legend = figure.querySelector(".legend");
      this.about = figure.querySelector(".about");
      this.history = history;
      this.selected = null;
      this.device = new CellMap(figure.querySelector("canvas"), TALLEST.device, history, colours, onPick);
      const tiers = h("div", { class: "tiers" });
      figure.append(tiers);
      this.host = new Tier(tiers, "On the host", history, colours, onPick);
      this.disk = new Tier(tiers, "In the folder", history, colours, onPick);
    }
    get maps() {
      return [this.device, this.host.cells, this.disk.cells];
    }
    select(number) {
      this.selected = number;
      for (const one of this.maps) one.drawn = null;
    }
    again() {
      for (const one of this.maps) one.again();
    }
    draw(time) {
      const frame = this.history.frameAt(time), shown = this.history.mapAt(time);
      if (frame && frame.blocks && this.summedAt !== frame) this.sum(frame.blocks, shown);
      this.summedAt = frame;
      if (!shown) return;
      this.device.draw(shown, shown.map, Math.ceil(this.history.hello.num_blocks / shown.perCell), this.selected);
      this.host.draw(shown.host, this.selected);
      this.disk.draw(shown.disk, this.selected);
    }
    sum(blocks, shown) {
      const shared = blocks.shared || 0, moving = blocks.moving || 0, held = (blocks.held || 0) - shared - moving;
      const evictable = blocks.evictable || 0, free = blocks.free || 0, perCell = shown ? shown.perCell : 1;
      const key = [held, shared, moving, evictable, free, perCell].join();
      if (key === this.summed) return;
      this.summed = key;
      const all = Math.max(1, held + shared + moving + evictable + free);
      const parts = [["held", held], ["shared", shared], ["moving", moving], ["evictable", evictable], ["free", free]].filter(([name, count]) => count || name !== "moving");
      this.bar.replaceChildren(...parts.map(([name, count]) => h("i", { class: name, style: { width: (count / all) * 100 + "%" } })));
      this.bar.setAttribute("aria-label", parts.map(([name, count]) => `${count} ${name}`).join(", ") + " blocks");
      this.legend.replaceChildren(...parts.map(([name, count]) =>
        h("span", { class: "key" }, h("i", { class: "swatch " + name }), `${name} ${format.count(count)}`)));
      let said = `${format.count(all)} blocks of ${this.history.hello.block_size} tokens; ${format.share((held + shared + moving) / all)} held.`;
      if (perCell > 1) said += ` A cell is ${perCell} blocks.`;
      format.setText(this.about, said);
      this.device.canvas.setAttribute("aria-label", "Map of all KV blocks. " + said);
    }
  }
  ns.MemoryMap = MemoryMap;
})((window.inflight ??= {}));
