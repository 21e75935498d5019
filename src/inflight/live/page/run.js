// One run on the page: its history and all its panels. Several stand side by side, on one clock.
"use strict";
(function (ns) {
  const { format, panels } = ns;
  const TEXT_EVERY = 250; // ms between two renewals of what is text

  class RunView {
    constructor(history, colours, onPick) {
      const made = document.getElementById("run-template").content.cloneNode(true);
      this.element = made.firstElementChild;
      this.history = this.shown = history; // shown: of the time that is looked at, closer perhaps
      this.close = null; // source of detailed frames, if there is one
      const part = (name) => this.element.querySelector(name);
      const pick = (number) => onPick(this, number);
      this.pick = pick;
      this.batch = new ns.BatchPicture(part(".batch"), history, colours, pick);
      this.memory = new ns.MemoryMap(part(".memory"), history, colours, pick);
      this.charts = new ns.Charts(part(".charts"), history, colours);
      this.tiles = new panels.Tiles(part(".tiles"));
      this.lanes = part(".lanes");
      this.members = part(".members");
      this.details = part(".requests");
      this.table = new ns.RequestTable(this.details, history, pick);
      this.happened = new ns.Happened(part(".happened"), history, pick);
      this.settingsPart = part(".settings");
      this.folder = part(".fold");
      this.folded = false;
      this.folder.addEventListener("click", () => this.fold(!this.folded));
      // What stands beside the batch, and how often it is drawn anew, in ms: one of them with each drawing, so that none
      // takes long.
      this.jobs = [
        { every: 200, run: (view) => this.memory.draw(view.time) },
        { every: 100, run: (view) => this.charts.draw(view.end, view.span, view.now, view.time) },
        { every: 250, run: (view) => this.showTiles(view) },
        { every: 500, run: (view) => this.showQueues(view) },
        { every: 1000, run: (view) => this.showTables(view) },
      ].map((job) => ({ ...job, at: 0 }));
    }
    // What is to be added to its times, so that they are the page's.
    get clock() {
      return (this.history.hello && this.history.hello.clock) || 0;
    }
    fold(folded) {
      this.folded = folded;
      this.element.classList.toggle("folded", folded);
      this.folder.setAttribute("aria-expanded", String(!folded));
      format.setText(this.folder, folded ? "Show" : "Hide");
      if (!folded) this.again();
    }
    greet(hello, alone) {
      this.history.greet(hello);
      this.element.classList.toggle("members-only", Boolean(hello.members_only));
      format.setText(this.element.querySelector(".run-title"), hello.title);
      const setting = (name) => (hello.settings || []).find((one) => one.name === name);
      const strategy = setting("strategy"), policy = setting("policy");
      const about = [strategy && strategy.value && `strategy ${strategy.value}`, policy && policy.value && `policy ${policy.value}`,
        hello.max_rows && format.counted(hello.max_rows, "row"), hello.span && format.seconds(hello.span[1] - hello.span[0]) + " long", ...(hello.notes || [])];
      format.setText(this.element.querySelector(".run-about"), about.filter(Boolean).join(" · "));
      this.element.querySelector(".run-head").classList.toggle("away", alone && hello.source === "live"); // its heading stays
      this.folder.hidden = alone || hello.source !== "live";
      panels.settings(this.settingsPart, hello.settings || []);
      this.again();
    }
    select(number) {
      this.batch.select(number);
      this.memory.select(number);
    }
    // Charts see for themselves how wide they are.
    resize() {
      this.batch.again();
      this.memory.again();
    }
    again() {
      this.resize();
      this.charts.again();
      for (const job of this.jobs) job.at = 0;
      this.batch.showLegend();
    }
    // Which frames are shown: the run's own, or closer ones.
    show(history) {
      if (this.shown === history) return;
      this.shown = history;
      for (const one of [this.batch, this.memory, this.memory.device, this.memory.host.cells, this.memory.disk.cells, this.charts]) one.history = history;
      this.batch.again();
      this.memory.again();
    }
    draw(time, span, now) {
      if (this.close && !this.folded) this.show(this.close.at(time, span, now));
      const history = this.shown, { hello } = history;
      if (!hello || !history.frames.length || this.folded) return;
      const frame = history.frameAt(time);
      if (hello.members_only) {
        if (now - this.jobs[0].at < TEXT_EVERY) return;
        this.jobs[0].at = now;
        panels.members(this.members, frame.members);
        this.tiles.showMembers(frame.members);
        return;
      }
      const first = hello.source === "live" || !hello.span ? -Infinity : hello.span[0] + span, end = Math.max(time, first);
      this.batch.draw(end, span, time);
      if (this.table.isStale) this.jobs[this.jobs.length - 1].at = 0;
      const due = (job) => (now - job.at) / job.every, job = this.jobs.reduce((one, other) => (due(other) > due(one) ? other : one));
      if (due(job) < 1) return;
      job.at = now;
      job.run({ time, end, span, now, frame, hello });
    }
    showTiles({ time, frame, hello }) {
      this.tiles.show(this.shown, frame, time);
      this.element.classList.toggle("over", Boolean(hello.span) && hello.source !== "live" && time > hello.span[1]);
    }
    showQueues({ time, frame }) {
      panels.queues(this.lanes, this.history, frame, this.pick);
      this.batch.showLegend();
      this.happened.draw(time);
    }
    showTables({ time, frame }) {
      this.batch.describe(frame);
      if (frame.members.length) panels.members(this.members, frame.members);
      if (this.details.open) this.table.draw(time);
    }
  }
  ns.RunView = RunView;
})((window.inflight ??= {}));
