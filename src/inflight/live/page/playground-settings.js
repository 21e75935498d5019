// What a request is asked with: model, sampling, lane, priority. What is left alone is not sent, so that the model's own
// settings hold. Knows fields and their limits; not how they are sent.
"use strict";
(function (ns) {
  const { h } = ns.format;
  // name, words, least, most, step, where the slider stands while nothing is set, what it does
  const SLIDERS = [
    ["temperature", "Temperature", 0, 2, 0.05, 1, "0 takes the likeliest token; more is more varied"],
    ["top_p", "Top p", 0.01, 1, 0.01, 1, "draws from the likeliest tokens that hold this share"],
    ["top_k", "Top k", 0, 200, 1, 0, "draws from so many of the likeliest; 0: all"],
    ["min_p", "Min p", 0, 1, 0.01, 0, "leaves out what is less likely than this share of the likeliest"],
    ["max_tokens", "Max tokens", 1, 1024, 1, 1024, "of the answer"],
    ["presence_penalty", "Presence penalty", -2, 2, 0.1, 0, "against tokens that are there already"],
    ["frequency_penalty", "Frequency penalty", -2, 2, 0.1, 0, "the same, each time they are there"],
    ["repetition_penalty", "Repetition penalty", 0.5, 2, 0.05, 1, "against tokens of prompt and answer; 1: none"],
  ];

  const TIERS = ["interactive", "batch"]; // that bodies name, by their service_tier
  const USUAL = TIERS.map((name) => ({ name, background: name === "batch" })); // of a model that is not in memory

  // A slider and a number that say the same, or nothing.
  class Slider {
    constructor([name, words, least, most, step, rest, about]) {
      this.name = name;
      this.rest = rest;
      const id = "set-" + name;
      this.number = h("input", { type: "number", id, min: least, max: most, step, placeholder: "auto", inputmode: "decimal", "aria-describedby": id + "-about" });
      this.range = h("input", { type: "range", min: least, max: most, step, "aria-label": words, "aria-describedby": id + "-about", tabindex: "0" });
      this.reset = h("button", { type: "button", class: "reset", title: `${words}: as the model has it`, "aria-label": `${words}: as the model has it` }, "×");
      this.element = h("div", { class: "setting" }, h("label", { for: id }, words), this.range, this.number, this.reset, h("p", { class: "why", id: id + "-about" }, about));
      this.range.addEventListener("input", () => this.set(this.range.value));
      this.number.addEventListener("input", () => this.show());
      this.reset.addEventListener("click", () => {
        this.set("");
        this.number.focus();
      });
      this.set("");
    }
    set(value) {
      this.number.value = value;
      this.show();
    }
    show() {
      const unset = this.number.value === "";
      this.range.value = unset ? String(this.rest) : this.number.value;
      this.range.setAttribute("aria-valuetext", unset ? "as the model has it" : this.number.value);
      this.element.classList.toggle("unset", unset);
      this.reset.disabled = unset;
    }
    most(value) {
      this.range.max = this.number.max = String(value);
      this.rest = value;
      this.show();
    }
    get value() {
      return this.number.value === "" || !this.number.checkValidity() ? undefined : Number(this.number.value);
    }
    get problem() {
      return this.number.checkValidity() ? "" : `${this.element.querySelector("label").textContent}: ${this.number.validationMessage}`;
    }
  }

  class Settings {
    constructor(byId) {
      this.byId = byId;
      this.sliders = SLIDERS.map((one) => new Slider(one));
      byId("sliders").append(...this.sliders.map((one) => one.element));
      byId("model-pick").addEventListener("change", () => this.suit());
      byId("lane").addEventListener("change", () => this.suitLane());
      this.models = [];
      this.lanes = [];
    }
    // Models that converse, or continue texts. Returns a sentence where there is none.
    offer(models) {
      const chat = models.filter((one) => !one.capabilities || one.capabilities.chat || one.capabilities.completions);
      this.models = chat;
      const pick = this.byId("model-pick"), before = pick.value;
      pick.replaceChildren(...chat.map((one) => h("option", { value: one.id }, one.id + (one.parent ? ` (adapter of ${one.parent})` : one.state && one.state !== "loaded" ? ` (${one.state})` : ""))));
      if (chat.some((one) => one.id === before)) pick.value = before;
      this.suit();
      return chat.length ? "" : nothingToTalkWith(models);
    }
    suit() {
      const model = this.models.find((one) => one.id === this.model);
      this.continues = Boolean(model && model.capabilities && !model.capabilities.chat); // it has no chat template
      this.byId("system").disabled = this.continues;
      this.byId("question").placeholder = this.continues ? "Begin a text" : "Ask something";
      for (const [id, is] of [["hello-text", this.continues], ["hello-why", this.continues], ["hello-chat", !this.continues], ["hello-examples", !this.continues]]) this.byId(id).hidden = !is;
      if (model && model.max_model_len) this.sliders.find((one) => one.name === "max_tokens").most(model.max_model_len);
      this.offerLanes((model && model.lanes) || USUAL);
    }
    // The lanes that the model's engine has; the first is where a request goes that names none.
    offerLanes(lanes) {
      const pick = this.byId("lane"), before = pick.value;
      this.lanes = lanes = lanes.filter((one) => /^[ -~]+$/.test(one.name)); // that a header can name
      pick.replaceChildren(...lanes.map((one) => h("option", { value: one.name }, one.background ? `${one.name}: background` : one.name)));
      if (lanes.some((one) => one.name === before)) pick.value = before;
      this.suitLane();
    }
    // A priority is asked for where it means something: elsewhere the server refuses one.
    suitLane() {
      const lane = this.lanes.find((one) => one.name === this.byId("lane").value), field = this.byId("priority");
      field.disabled = !(lane && lane.takes_priority);
      field.placeholder = field.disabled ? "not used with this policy" : "none; the lower number goes first";
    }
    get model() {
      return this.byId("model-pick").value;
    }
    get colours() {
      return this.byId("colours").checked;
    }
    get problem() {
      const whole = [["seed", "Seed"], ["priority", "Priority"]].find(([name]) => !this.byId(name).disabled && !this.byId(name).checkValidity());
      return this.sliders.map((one) => one.problem).find(Boolean) || (whole ? `${whole[1]}: ${this.byId(whole[0]).validationMessage}` : "");
    }
    body(messages) {
      const body = { model: this.model, stream: true, stream_options: { include_usage: true }, timings: true };
      if (this.continues) Object.assign(body, { prompt: messages.map((one) => one.content).join(""), max_tokens: 256 });
      else body.messages = messages;
      if (this.colours) Object.assign(body, this.continues ? { logprobs: 5 } : { logprobs: true, top_logprobs: 5 });
      for (const one of this.sliders) if (one.value !== undefined) body[one.name] = one.value;
      for (const name of ["seed", "priority"]) {
        const field = this.byId(name);
        if (field.value !== "" && !field.disabled) body[name] = Number(field.value);
      }
      if (this.byId("lane").value === "batch") body.service_tier = "flex";
      return body;
    }
    // Lanes that no service tier names are asked for by a header.
    get headers() {
      const lane = this.byId("lane").value;
      return lane && !TIERS.includes(lane) ? { "X-LLM-D-Inference-Objective": lane } : {};
    }
    get system() {
      return this.continues ? "" : this.byId("system").value.trim();
    }
  }

  function nothingToTalkWith(models) {
    if (!models.length) return "This server serves no model that your key may use.";
    const one = models[0], can = one.capabilities || {};
    const instead = can.embeddings ? "makes vectors of texts, at /v1/embeddings" : can.scores ? "scores pairs of texts, at /v1/score" : can.classes ? "puts texts into classes, at /classify" : "does not answer conversations";
    return `There is nothing to chat with here: ${one.id} ${instead}.`;
  }
  ns.Settings = Settings;
})((window.inflight ??= {}));
