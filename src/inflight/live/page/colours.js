// Colours: of the page's style sheet, and of requests, lanes, tenants and kinds of work. Distinguished by lightness as well
// as by hue, and never by colour alone: prompts are tall and single tokens low, shared and cached blocks have patterns.
"use strict";
(function (ns) {
  const WORKS = ["prefill", "decode", "recomputed", "padding", "idle"];
  const NAMES = ["prompt", "next token", "recomputed", "padding", "in batch, idle this step"];
  const SERIES = ["s1", "s2", "s3", "s4", "s5", "s6"];
  const MAX_CACHED = 4000; // requests whose colours are remembered

  // Of lightness, chroma and hue (OKLCH) the colour that is nearest on a screen, in the form that a canvas reads fastest.
  function screenColour(light, chroma, hue) {
    const a = chroma * Math.cos((hue * Math.PI) / 180), b = chroma * Math.sin((hue * Math.PI) / 180);
    const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3, m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
    return hex([4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s].map((one) => 255 * (one <= 0.0031308 ? 12.92 * one : 1.055 * Math.max(0, one) ** (1 / 2.4) - 0.055)));
  }
  const hex = (parts) => "#" + parts.map((one) => Math.round(Math.max(0, Math.min(255, one))).toString(16).padStart(2, "0")).join("");
  const parts = (text) => [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
  const mixed = (one, other, share) => hex(parts(one).map((value, place) => value * share + parts(other)[place] * (1 - share)));

  class Colours {
    constructor() {
      this.mode = "request";
      this.names = { lane: new Map(), tenant: new Map() };
      this.read();
    }
    // The style sheet's, which follow the system's light and dark.
    read() {
      const style = getComputedStyle(document.documentElement);
      const variable = (name) => style.getPropertyValue("--" + name).trim();
      this.dark = matchMedia("(prefers-color-scheme: dark)").matches;
      this.of = {};
      for (const name of ["page", "card", "ink", "soft", "rule", "grid", "free", "idle", "padding", "cached", "shared",
        "prefill", "decode", "recomputed", "waiting", "bad", "good", "s1", "s2", "s3", "s4", "s5", "s6", "s7"])
        this.of[name] = variable(name);
      this.cache = new Map();
    }
    setMode(mode) {
      this.mode = mode;
      this.cache = new Map();
    }
    // Of what a run, or a block's holder, is drawn in. work: a place in WORKS.
    // infoOf: a function of its number, asked where the colour is not known yet.
    run(number, work, infoOf) {
      if (work === 4) return this.of.idle;
      if (work === 3) return this.of.padding;
      const key = number * 8 + work;
      let found = this.cache.get(key);
      if (found === undefined) {
        if (this.cache.size > MAX_CACHED) this.cache.clear();
        const info = infoOf(number);
        found = this.made(number, work, info);
        if (info) this.cache.set(key, found);
      }
      return found;
    }
    made(number, work, info) {
      if (info && info.mine === false) return this.tint(250, 0.012, work);
      switch (this.mode) {
        case "work": return this.of[WORKS[work]];
        case "lane": return this.named("lane", info ? info.lane || "" : "", work);
        case "tenant": return this.named("tenant", info ? info.tenant || "" : "", work);
      }
      return this.tint((number * 137.508 + 245) % 360, 0.115, work);
    }
    tint(hue, chroma, work) {
      const strong = work === 0 || work === 2;
      const light = this.dark ? (strong ? 0.8 : 0.62) : strong ? 0.56 : 0.76;
      return screenColour(light, strong ? chroma * 1.25 : chroma, hue);
    }
    named(kind, name, work) {
      const colour = this.of[SERIES[this.placeOf(kind, name)]];
      if (work === 0 || work === 2) return colour;
      return mixed(colour, this.of.card, 0.62);
    }
    placeOf(kind, name) {
      const known = this.names[kind];
      if (!known.has(name)) known.set(name, known.size % SERIES.length);
      return known.get(name);
    }
    // What the legend says of the mode: [colour, words, is low].
    legend() {
      if (this.mode === "work") return [0, 1, 2, 3, 4].map((work) => [this.of[WORKS[work]], NAMES[work]]);
      if (this.mode === "request") return [];
      return [...this.names[this.mode]].slice(0, 8).map(([name, place]) => [this.of[SERIES[place]], name || "(no name)"]);
    }
  }
  ns.Colours = Colours;
  ns.WORK_NAMES = NAMES;
})((window.inflight ??= {}));
