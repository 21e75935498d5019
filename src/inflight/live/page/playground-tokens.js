// An answer's tokens, coloured by how likely each was: which part of the text is whose, and what might have stood there.
// Text is what the server says; tokens are found in it, and what is found nowhere (an end token, reasoning) is left out.
"use strict";
(function (ns) {
  const { h } = ns.format;
  const LEVELS = [0.9, 0.6, 0.3, 0.1, 0.02]; // least probability of levels 0 to 4; what is less likely is of level 5
  const level = (probability) => {
    const found = LEVELS.findIndex((least) => probability >= least);
    return found < 0 ? LEVELS.length : found;
  };
  const percent = (probability) =>
    probability >= 0.9995 ? "100 %" : probability >= 0.1 ? (probability * 100).toFixed(0) + " %" : probability >= 0.0005 ? (probability * 100).toFixed(1) + " %" : "< 0.1 %";
  // A token as it is shown by itself: spaces and line ends are seen.
  const visible = (text) => (text === "" ? "(nothing)" : text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥"));

  // open: whether the rest of a last character may still come, which is then left out.
  const decoded = (bytes, open) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes), { stream: open });

  // Finds tokens in the text while both grow, and calls back with each stretch: (text, tokens); tokens may be none.
  class Aligner {
    constructor(onStretch) {
      this.onStretch = onStretch;
      this.text = "";
      this.at = 0;
      this.waiting = []; // tokens whose text has not come yet
    }
    add(text, tokens) {
      this.text += text;
      this.waiting.push(...tokens);
      this.match();
    }
    end() {
      this.match(true);
      if (this.at < this.text.length) this.onStretch(this.text.slice(this.at), []);
      this.at = this.text.length;
      this.waiting = [];
    }
    match(isWhole = false) {
      while (this.waiting.length) {
        const found = this.next(isWhole);
        if (!found) return; // half a character: the rest comes with the next tokens
        const [text, count] = found, forms = this.at ? [text] : [text, text.trimStart()]; // an answer may lose its first space
        const shown = forms.find((one) => this.text.startsWith(one, this.at));
        if (shown === undefined && !isWhole && this.text.length - this.at < text.length) {
          const rest = this.text.slice(this.at);
          if (forms.some((one) => one.startsWith(rest))) return; // the text comes later
        }
        const tokens = this.waiting.splice(0, count);
        if (!shown) continue;
        this.onStretch(shown, tokens);
        this.at += shown.length;
      }
    }
    // The first tokens that make whole characters together, and their text; bytes that are no character count as one.
    next(isWhole) {
      const bytes = [];
      for (let count = 1; count <= this.waiting.length; count++) {
        const token = this.waiting[count - 1];
        if (!token.bytes) return count === 1 ? [token.token, 1] : [decoded(bytes, false), count - 1];
        bytes.push(...token.bytes);
        const text = decoded(bytes, true);
        if (text === decoded(bytes, false)) return [text, count];
      }
      return isWhole && this.waiting.length ? [decoded(bytes, false), this.waiting.length] : null;
    }
  }

  // The answer's text as elements: one for each stretch, with its tokens for who looks at it.
  class TokenText {
    // given: what the answer begins with, which was not drawn.
    constructor(given = "") {
      this.element = h("div", { class: "text", role: "group", "aria-label": "Answer" });
      this.aligner = new Aligner((text, tokens) => this.put(text, tokens));
      this.tail = h("span", {}); // what has come and whose tokens have not
      this.element.append(...(given ? [h("span", { class: "given", title: "given, not drawn" }, given)] : []), this.tail);
      this.drawn = new WeakMap();
    }
    add(text, tokens) {
      this.aligner.add(text, tokens);
      this.tail.textContent = this.aligner.text.slice(this.aligner.at);
    }
    end() {
      this.aligner.end();
      this.tail.remove();
    }
    put(text, tokens) {
      if (!tokens.length) return this.tail.before(text);
      const probability = Math.exp(tokens.reduce((sum, one) => sum + one.logprob, 0));
      const span = h("span", { class: "token", "data-level": level(probability), tabindex: this.element.querySelector(".token") ? "-1" : "0" }, text);
      this.drawn.set(span, { tokens, probability });
      this.tail.before(span);
    }
    // All that stands before an element.
    before(element) {
      const range = document.createRange();
      range.setStart(this.element, 0);
      range.setEndBefore(element);
      return range.toString();
    }
    // What is known of the token at an element; null where it is none.
    at(element) {
      return this.drawn.get(element) || null;
    }
  }

  // What might have stood there, beside the token that one looks at. Held fast, each can be chosen, to go on with it.
  class Alternatives {
    // onChoose(span, text): called with the replacement.
    constructor(onChoose) {
      this.onChoose = onChoose;
      this.isHeld = this.isLeaving = false;
      this.element = h("div", { class: "alternatives", id: "alternatives", role: "tooltip", hidden: true });
      document.body.append(this.element);
      addEventListener("scroll", () => this.hide(), { passive: true, capture: true });
      addEventListener("resize", () => this.hide());
      document.addEventListener("pointerdown", (event) => {
        if (this.isHeld && !this.element.contains(event.target)) this.hide();
      });
    }
    show(span, { tokens, probability }, isHeld = false) {
      this.isHeld = isHeld;
      this.element.classList.toggle("held", isHeld);
      this.element.setAttribute("role", isHeld ? "dialog" : "tooltip");
      this.element.setAttribute("aria-label", "What might have stood here");
      const rows = tokens.length > 1
        ? [h("p", {}, `${tokens.length} tokens, which make one character together`)]
        : this.rows(tokens[0]);
      const hint = tokens.length > 1 || !rows.length ? null : h("p", { class: "why" }, isHeld ? "Choose one, and the answer goes on behind it." : "Click, or Enter: choose another.");
      this.element.replaceChildren(h("p", { class: "chosen" }, h("code", {}, visible(span.textContent)), ` ${percent(probability)}`), ...rows, ...(hint ? [hint] : []));
      this.element.hidden = false;
      this.span?.removeAttribute("aria-describedby");
      this.span = span;
      span.setAttribute("aria-describedby", "alternatives");
      this.place(span);
      if (isHeld) this.element.querySelector("button")?.focus({ preventScroll: true });
    }
    rows(token) {
      const top = token.top_logprobs || [];
      if (!top.length) return [];
      const rows = top.map((one) => {
        const probability = Math.exp(one.logprob), isIt = one.token === token.token && one.logprob === token.logprob;
        return h("tr", { class: isIt ? "it" : null }, h("th", { scope: "row" }, this.name(one, isIt)),
          h("td", { class: "meter" }, h("i", { style: { width: Math.max(1, probability * 100) + "%" } })), h("td", {}, percent(probability)));
      });
      return [h("table", {}, h("caption", { class: "away" }, "The likeliest tokens here"), h("tbody", {}, ...rows))];
    }
    // Half a character and a token that ends something cannot be written.
    name(one, isIt) {
      const text = one.bytes && decoded(one.bytes, false), word = h("code", {}, visible(one.token));
      if (!this.isHeld || isIt || !text || text.includes("\uFFFD") || /^<.*>$/.test(text)) return word;
      return h("button", { type: "button", class: "quiet", onclick: () => this.onChoose(this.span, text), "aria-label": `Go on with ${visible(one.token)}` }, word);
    }
    place(span) {
      const box = span.getClientRects()[0] || span.getBoundingClientRect(), own = this.element.getBoundingClientRect();
      const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - own.width - 8));
      const below = box.bottom + 6, above = box.top - own.height - 6;
      this.element.style.setProperty("left", left + "px");
      this.element.style.setProperty("top", (below + own.height > innerHeight && above > 0 ? above : below) + "px");
    }
    hide() {
      const back = this.element.contains(document.activeElement) ? this.span : null;
      this.element.hidden = true;
      this.isHeld = false;
      this.span?.removeAttribute("aria-describedby");
      this.span = null;
      this.isLeaving = true; // who comes back to the token need not see it again
      back?.focus({ preventScroll: true });
      this.isLeaving = false;
    }
  }
  ns.tokens = { Aligner, TokenText, Alternatives, level, percent, visible };
})((window.inflight ??= {}));
