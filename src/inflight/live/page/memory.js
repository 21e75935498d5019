// The KV pool as a map: a cell for each block (or a few), coloured by who holds it. Free, held, shared and evictable
// blocks differ in pattern as well; and a bar that sums them up.
"use strict";
(function (ns) {
  const { format } = ns;
  const FREE = -3, EVICTABLE = -2, SHARED = -1;

  class MemoryMap {
    constructor(figure, history, colours, onPick) {
      this.canvas = figure.querySelector("canvas");
      this.bar = figure.querySelector(".bar");
      this.legend = figure.querySelector(".legend");
      this.about = figure.querySelector(".about");
      this.history = history;
      this.colours = colours;
      this.selected = null;
      this.resized = true;
      new ResizeObserver(() => (this.resized = true)).observe(this.canvas.parentElement);
      this.canvas.addEventListener("click", (event) => {
        const owner = this.ownerAt(event.offsetX, event.offsetY);
        if (owner !== null && owner >= 0) onPick(owner);
      });
    }
    select(number) {
      this.selected = number;
      this.drawn = null;
    }
    again() {
      this.drawn = null;
      this.resized = true;
    }
    fit(cells) {
      if (!this.resized && cells === this.cells) return;
      this.resized = false;
      const width = Math.max(160, this.canvas.parentElement.clientWidth), scale = window.devicePixelRatio || 1;
      Object.assign(this, { width, cells, scale, drawn: null });
      const tallest = 190;
      let size = Math.floor(Math.sqrt((width * tallest) / Math.max(1, cells)));
      size = Math.max(3, Math.min(18, size));
      this.columns = Math.max(1, Math.floor(width / size));
      while (size > 3 && Math.ceil(cells / this.columns) * size > tallest) {
        size -= 1;
        this.columns = Math.floor(width / size);
      }
      this.size = size;
      this.height = Math.ceil(cells / this.columns) * size;
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(this.height * scale);
      this.canvas.style.height = this.height + "px";
    }
    draw(time) {
      const frame = this.history.frameAt(time), shown = this.history.mapAt(time);
      if (frame && frame.blocks && this.summedAt !== frame) this.sum(frame.blocks);
      this.summedAt = frame;
      if (!shown) return;
      const total = this.history.hello.num_blocks;
      this.fit(Math.ceil(total / shown.perCell));
      if (this.drawn === shown) return;
      this.drawn = shown;
      const pen = this.canvas.getContext("2d"), { colours, size, scale, columns } = this;
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, this.width, this.height);
      const gap = size >= 5 ? 1 : 0.5, side = size - gap;
      let place = 0;
      for (let index = 0; index < shown.map.length; index += 2) {
        const owner = shown.map[index], count = shown.map[index + 1];
        const mine = this.selected === null || owner === this.selected;
        pen.globalAlpha = mine ? 1 : 0.22;
        pen.fillStyle = owner === FREE ? colours.of.free : owner === EVICTABLE ? colours.of.free : owner === SHARED
          ? colours.of.shared : colours.run(owner, 1, (number) => this.history.infoOf(number));
        for (let end = place + count; place < end; place++) {
          const x = (place % columns) * size, y = Math.floor(place / columns) * size;
          pen.fillRect(x, y, side, side);
          if (owner === EVICTABLE || owner === SHARED) {
            const colour = pen.fillStyle;
            pen.fillStyle = owner === EVICTABLE ? colours.of.cached : colours.of.card;
            const dot = Math.max(1, side * (owner === EVICTABLE ? 0.5 : 0.28));
            pen.fillRect(x + (side - dot) / 2, y + (side - dot) / 2, dot, dot);
            pen.fillStyle = colour;
          }
        }
      }
      pen.globalAlpha = 1;
    }
    ownerAt(x, y) {
      if (!this.drawn) return null;
      let place = Math.floor(y / this.size) * this.columns + Math.floor(x / this.size);
      for (let index = 0; index < this.drawn.map.length; index += 2) {
        place -= this.drawn.map[index + 1];
        if (place < 0) return this.drawn.map[index];
      }
      return null;
    }
    sum(blocks) {
      const shared = blocks.shared || 0, held = (blocks.held || 0) - shared, evictable = blocks.evictable || 0, free = blocks.free || 0;
      const key = [held, shared, evictable, free, blocks.on_host].join();
      if (key === this.summed) return;
      this.summed = key;
      const all = Math.max(1, held + shared + evictable + free), { h } = format;
      const parts = [["held", held], ["shared", shared], ["evictable", evictable], ["free", free]];
      this.bar.replaceChildren(...parts.map(([name, count]) => h("i", { class: name, style: { width: (count / all) * 100 + "%" } })));
      this.bar.setAttribute("aria-label", parts.map(([name, count]) => `${count} ${name}`).join(", ") + " blocks");
      this.legend.replaceChildren(...parts.map(([name, count]) =>
        h("span", { class: "key" }, h("i", { class: "swatch " + name }), `${name} ${format.count(count)}`)));
      const hello = this.history.hello;
      let said = `${format.count(all)} blocks of ${hello.block_size} tokens; ${format.share((held + shared) / all)} held.`;
      if (hello.host_blocks) said += ` On the host: ${format.count(blocks.on_host || 0)} of ${format.count(hello.host_blocks)}.`;
      if (this.drawn && this.drawn.perCell > 1) said += ` A cell is ${this.drawn.perCell} blocks.`;
      format.setText(this.about, said);
      this.canvas.setAttribute("aria-label", "Map of all KV blocks. " + said);
    }
  }
  ns.MemoryMap = MemoryMap;
})((window.inflight ??= {}));
