// The playground: a conversation with the served model. Knows the messages, and what a user may do with them; an answer
// knows itself, settings know what is sent.
"use strict";
(function (ns) {
  const { format, Api, Refused, Settings, Answer, tokens } = ns;
  const { h, setText } = format;
  const byId = (id) => document.getElementById(id);
  const RETRY_MS = 1500; // between two looks at a server that loads or is away

  class Playground {
    constructor() {
      this.api = new Api();
      this.settings = new Settings(byId);
      this.alternatives = new tokens.Alternatives((span, text) => this.branch(span, text));
      this.turns = []; // {role, content, element}; an answer has itself, too
      this.abort = null; // of the answer in flight
      this.listen();
      this.showColours();
      this.meet();
    }
    listen() {
      byId("composer").addEventListener("submit", (event) => {
        event.preventDefault();
        if (this.abort) this.stop();
        else this.send();
      });
      byId("question").addEventListener("keydown", (event) => {
        if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
        event.preventDefault();
        if (!this.abort) this.send();
      });
      byId("question").addEventListener("input", () => this.grow(byId("question")));
      byId("anew").addEventListener("click", () => this.anew());
      byId("colours").addEventListener("change", () => this.showColours());
      byId("key-form").addEventListener("submit", () => this.api.setKey(byId("key-text").value.trim(), byId("key-kept").checked));
      byId("key-change").addEventListener("click", () => this.askKey("Another key, for this page."));
      byId("settings-show").addEventListener("click", () => this.showSettings(byId("settings").classList.contains("away-small")));
      byId("settings-hide").addEventListener("click", () => this.showSettings(false));
      for (const one of document.querySelectorAll(".examples button")) one.addEventListener("click", () => {
        byId("question").value = one.textContent;
        this.send();
      });
      document.addEventListener("keydown", (event) => {
        if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
        if (!this.alternatives.element.hidden) this.alternatives.hide();
        else if (this.abort) this.stop();
      });
      this.listenToTokens(byId("turns"));
    }
    listenToTokens(element) {
      const look = (event, isHeld = false) => {
        const known = this.tokenAt(event.target);
        if (known && document.body.classList.contains("coloured")) this.alternatives.show(event.target, known, isHeld && !this.abort);
      };
      const leave = () => {
        if (!this.alternatives.isHeld) this.alternatives.hide();
      };
      for (const kind of ["mouseover", "focusin"]) element.addEventListener(kind, (event) => this.alternatives.isHeld || this.alternatives.isLeaving || look(event));
      for (const kind of ["mouseout", "focusout"]) element.addEventListener(kind, leave);
      element.addEventListener("click", (event) => look(event, true));
      element.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && event.target.classList.contains("token")) {
          event.preventDefault();
          return look(event, true);
        }
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step || !event.target.classList.contains("token")) return undefined;
        let next = event.target;
        do next = step > 0 ? next.nextElementSibling : next.previousElementSibling;
        while (next && !next.classList.contains("token"));
        if (!next) return undefined;
        event.preventDefault();
        event.target.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
        return undefined;
      });
    }
    tokenAt(element) {
      for (const turn of this.turns) {
        const known = turn.answer && turn.answer.text.at(element);
        if (known) return known;
      }
      return null;
    }

    // -- the server ---------------------------------------------------------------------------------------------------
    async meet() {
      for (;;) {
        try {
          const nothing = this.settings.offer(await this.api.models());
          this.state(nothing ? "refused" : "live", nothing ? "nothing to chat with" : "ready");
          this.notice(nothing);
          this.models = nothing ? 0 : this.settings.models.length;
          byId("ask").disabled = Boolean(nothing);
          return;
        } catch (fault) {
          if (fault.status === 401) await this.askKey(this.api.key ? "That key is not known here; give another one." : "");
          else if (fault instanceof Refused && fault.status !== 503) return this.fail(fault.message);
          else {
            this.state("lost", fault instanceof Refused ? "the server loads a model" : "no answer from the server; trying again");
            await new Promise((done) => setTimeout(done, RETRY_MS));
          }
        }
      }
    }
    fail(sentence) {
      this.state("refused", "refused");
      this.notice(sentence);
    }
    state(kind, words) {
      byId("status").dataset.kind = kind;
      setText(byId("status-text"), words);
    }
    notice(words) {
      byId("notice").hidden = !words;
      setText(byId("notice"), words);
    }
    askKey(why) {
      const dialog = byId("key");
      if (why) setText(byId("key-why"), why);
      byId("key-kept").checked = this.api.isKept;
      dialog.showModal();
      return new Promise((done) => dialog.addEventListener("close", () => {
        byId("key-text").value = "";
        done();
      }, { once: true }));
    }

    // -- the conversation ---------------------------------------------------------------------------------------------
    send() {
      const text = byId("question").value.trim();
      if (!text || this.abort || byId("ask").disabled) return;
      byId("question").value = "";
      this.grow(byId("question"));
      this.addQuestion(text);
      this.answer();
    }
    addQuestion(text) {
      const turn = { role: "user", content: text };
      turn.element = h("article", { class: "message user", "aria-label": "You" }, h("p", { class: "text" }, text),
        h("p", { class: "acts" }, this.button("Edit", () => this.edit(turn)), this.button("Copy", (button) => this.copy(turn.content, button))));
      this.put(turn);
    }
    put(turn) {
      byId("hello").hidden = true;
      byId("anew").hidden = false;
      this.turns.push(turn);
      byId("turns").append(turn.element);
      turn.element.scrollIntoView({ block: "end" });
    }
    messages() {
      const said = this.turns.filter((one) => one.role === "user" || one.content).map(({ role, content }) => ({ role, content }));
      return this.settings.system ? [{ role: "system", content: this.settings.system }, ...said] : said;
    }
    // Another token in the place of one: the answer goes on behind it.
    branch(span, text) {
      const turn = this.turns.find((one) => one.answer && one.answer.text.at(span));
      if (!turn || this.abort) return;
      const given = turn.answer.text.before(span) + text;
      this.alternatives.hide();
      this.cutFrom(turn);
      this.answer(given);
    }
    // given: what the answer begins with; "": nothing.
    async answer(given = "") {
      const problem = this.settings.problem;
      if (problem) {
        this.notice(problem);
        return this.showSettings(true);
      }
      this.notice("");
      const body = this.settings.body(this.messages());
      if (given && this.settings.continues) body.prompt += given;
      else if (given) {
        body.messages.push({ role: "assistant", content: given });
        Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
      }
      const answer = new Answer({ announce: (text) => this.announce(text) }, given);
      const turn = { role: "assistant", content: given, answer, element: answer.element };
      this.put(turn);
      this.begin();
      try {
        for await (const frame of this.api.answer(body, this.settings.headers, this.abort.signal, () => {})) {
          const follows = this.isAtEnd();
          answer.take(frame);
          turn.content = answer.content;
          if (follows) scrollTo({ top: document.documentElement.scrollHeight });
        }
        answer.end();
      } catch (fault) {
        this.explain(answer, fault);
      }
      turn.content = answer.content;
      this.offer(turn);
      this.finish();
    }
    explain(answer, fault) {
      if (fault.name === "AbortError") return answer.end("You stopped it.");
      if (fault instanceof Refused) {
        answer.end(fault.message, true);
        if (fault.status === 401) this.askKey("That key is not known here; give another one, and ask again.");
        if (fault.status === 404 || fault.status >= 500) this.meet();
        return undefined;
      }
      answer.end(answer.content ? "The connection broke off: the server went away, or was started anew. What came until then is above; ask again for a whole answer."
        : "The server does not answer; ask again when it is back.", true);
      this.meet();
      return undefined;
    }
    begin() {
      this.abort = new AbortController();
      document.body.classList.add("answering");
      setText(byId("ask-word"), "Stop");
      byId("ask").title = "Esc";
      this.announce("Answering.");
    }
    finish() {
      this.abort = null;
      document.body.classList.remove("answering");
      setText(byId("ask-word"), "Send");
      byId("ask").title = "Enter";
    }
    stop() {
      this.abort.abort();
      byId("question").focus();
    }
    offer(turn) {
      for (const other of this.turns) if (other.answer && other !== turn) other.answer.offer(this.copyOf(other));
      turn.answer.offer(...(turn.content ? [this.copyOf(turn)] : []), this.button("Regenerate", () => this.again(turn)));
    }
    copyOf(turn) {
      return this.button("Copy", (button) => this.copy(turn.content, button));
    }
    again(turn) {
      if (this.abort) return;
      this.cutFrom(turn);
      this.answer();
    }
    cutFrom(turn) {
      for (const gone of this.turns.splice(this.turns.indexOf(turn))) gone.element.remove();
    }
    anew() {
      if (this.abort) this.abort.abort();
      if (this.turns.length) this.cutFrom(this.turns[0]);
      byId("hello").hidden = false;
      byId("anew").hidden = true;
      this.notice("");
      byId("question").focus();
    }
    // Another question in its place: what came after it is gone.
    edit(turn) {
      if (this.abort) return;
      const field = h("textarea", { rows: "2", "aria-label": "Your question, to be edited" });
      field.value = turn.content;
      const before = [...turn.element.childNodes];
      const back = () => turn.element.replaceChildren(...before);
      const form = h("form", { class: "edit" }, field, h("p", { class: "acts" }, h("button", { type: "submit", class: "primary" }, "Ask"), this.button("Cancel", back)));
      form.addEventListener("submit", (event) => {
        event.preventDefault();
        const text = field.value.trim();
        if (!text || this.abort) return;
        this.cutFrom(turn);
        this.addQuestion(text);
        this.answer();
      });
      field.addEventListener("keydown", (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          back();
        } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          form.requestSubmit();
        }
      });
      field.addEventListener("input", () => this.grow(field));
      turn.element.replaceChildren(form);
      this.grow(field);
      field.focus();
    }
    async copy(text, button) {
      let said = "Copied";
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        said = "The browser does not let it be copied"; // without TLS, other than on this machine
      }
      setText(button, said);
      setTimeout(() => setText(button, "Copy"), 1600);
    }

    // -- the page -----------------------------------------------------------------------------------------------------
    button(word, act) {
      const made = h("button", { type: "button", class: "quiet" }, word);
      made.addEventListener("click", () => act(made));
      return made;
    }
    announce(text) {
      if (text.trim()) byId("announcer").append(h("p", {}, text));
      while (byId("announcer").childElementCount > 20) byId("announcer").firstChild.remove();
    }
    isAtEnd() {
      return innerHeight + scrollY >= document.documentElement.scrollHeight - 80;
    }
    grow(field) {
      field.style.setProperty("height", "auto");
      field.style.setProperty("height", Math.min(field.scrollHeight + 2, innerHeight * 0.4) + "px");
    }
    showColours() {
      document.body.classList.toggle("coloured", byId("colours").checked);
      this.alternatives.hide();
    }
    showSettings(shown) {
      byId("settings").classList.toggle("away-small", !shown);
      byId("settings-show").setAttribute("aria-expanded", String(shown));
      if (shown) byId("model-pick").focus();
      else byId("question").focus({ preventScroll: true });
    }
  }
  ns.playground = new Playground();
})((window.inflight ??= {}));
