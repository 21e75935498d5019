// What a page holds of one run: runs of rows, points of steps, frames' counts, and the requests of that time.
// Knows frames as they come; draws nothing. Bounded: what is older than `keep` seconds goes, whatever came.
"use strict";
(function (ns) {
  const GAP = 0.25; // of a run's length that may lie before it goes on: a step's end and the next one's beginning
  const TRIM_EVERY = 50; // frames

  class History {
    // of: the history of the same run, where this one is a stretch of it, drawn more closely: requests are known there.
    constructor(keep, of = null) {
      this.keep = keep;
      this.of = of;
      this.hello = null;
      this.rows = []; // row → [{sequence, work, start, end, tokens}], rising
      this.steps = []; // of steps, as they came, rising
      this.frames = []; // {number, start, end, lanes, blocks, rates, …}, rising
      this.events = []; // {at, gone, came}: who lost its row, and who took one within the same frame
      this.maps = []; // {end, map, perCell, holders}, rising
      this.requests = of ? of.requests : new Map(); // number → {info, first, decoded, preempted: [], back: [], ended}; back: when it ran again
      this.dirtyFrom = Infinity; // earliest time that was drawn and has changed since
      this.trimmed = 0;
      this.accepted = [];
      this.drafted = 0;
    }
    get start() {
      return this.frames.length ? this.frames[0].start : this.hello && this.hello.span ? this.hello.span[0] : 0;
    }
    // Where its clock is said to begin: a record's with its first request, a live one's with the engine.
    get zero() {
      return this.hello && this.hello.source !== "live" && this.hello.span ? this.hello.span[0] : 0;
    }
    get end() {
      return this.frames.length ? this.frames[this.frames.length - 1].end : this.start;
    }
    greet(hello) {
      this.hello = hello;
      for (const info of hello.requests || []) this.know(info);
    }
    know(info) {
      const known = this.requests.get(info.number);
      if (known) {
        known.info = info;
        return known;
      }
      const fresh = { info, first: null, decoded: null, seen: info.arrival || 0, preempted: [], back: [], ended: null };
      this.requests.set(info.number, fresh);
      return fresh;
    }
    infoOf(number) {
      const known = this.requests.get(number);
      return known ? known.info : null;
    }
    add(frame) {
      const last = this.frames[this.frames.length - 1];
      if (last && frame.number <= last.number) return;
      for (const info of frame.requests || []) this.know(info);
      const came = [];
      for (const run of frame.runs || []) if (this.addRun(run)) came.push(run[1]);
      for (const step of frame.steps || []) this.steps.push(step);
      if (!this.of) this.learn(frame, came);
      const blocks = frame.blocks;
      if (blocks && blocks.map && blocks.map.length)
        this.maps.push({ end: frame.end, map: blocks.map, perCell: blocks.per_cell || 1, host: blocks.host, disk: blocks.disk, holders: frame.holders || [] });
      this.frames.push({
        number: frame.number, start: frame.start, end: frame.end, lanes: frame.lanes || [], rates: frame.rates || {},
        blocks, members: frame.members || [], waiting: (frame.lanes || []).reduce((sum, one) => sum + (one.waiting || 0), 0),
        running: (frame.lanes || []).reduce((sum, one) => sum + (one.running || 0), 0),
        preempted: (frame.preempted || []).length, lost: frame.lost || 0,
      });
      if (++this.trimmed % TRIM_EVERY === 0) this.trim();
    }
    // What becomes of requests, and of drafts.
    learn(frame, came) {
      // When: a frame is longer than a step, and a row is lost where what was last computed there ends.
      let at = this.events.length ? this.events[this.events.length - 1].at : -Infinity;
      for (const number of frame.preempted || []) {
        const known = this.requests.get(number), lost = known ? Math.min(known.seen, frame.end) : frame.end;
        if (known) known.preempted.push(lost);
        at = Math.max(at, lost);
      }
      if ((frame.preempted || []).length) this.events.push({ at, gone: frame.preempted, came });
      for (const ended of frame.ended || []) this.know(ended.info).ended = ended;
      (frame.accepted || []).forEach((chunks, right) => (this.accepted[right] = (this.accepted[right] || 0) + chunks));
      this.drafted += frame.drafted || 0;
    }
    addRun([row, sequence, work, start, end, tokens]) {
      const runs = (this.rows[row] ??= []);
      const last = runs[runs.length - 1];
      this.dirtyFrom = Math.min(this.dirtyFrom, start);
      if (last && last.sequence === sequence && last.work === work && start - last.end <= GAP * (end - start) + 1e-3) {
        last.end = Math.max(last.end, end);
        last.tokens += tokens;
      } else runs.push({ row, sequence, work, start, end, tokens });
      const known = this.requests.get(sequence) || this.know({ number: sequence, arrival: start });
      const isFirst = work < 3 && known.first === null;
      known.seen = end;
      if (isFirst) known.first = start;
      if (work < 3 && known.back.length < known.preempted.length && end > known.preempted[known.back.length]) known.back.push(start);
      if (work === 1 && known.decoded === null) known.decoded = start;
      return isFirst;
    }
    trim() {
      const before = this.end - this.keep;
      if (!isFinite(before) || before <= this.start) return;
      const dropped = (list, time) => {
        let place = 0;
        while (place < list.length && time(list[place]) < before) place++;
        if (place) list.splice(0, place);
      };
      for (const runs of this.rows) if (runs) dropped(runs, (run) => run.end);
      dropped(this.steps, (step) => step[1]);
      dropped(this.frames, (frame) => frame.end);
      dropped(this.maps, (one) => one.end);
      dropped(this.events, (one) => one.at);
      for (const [number, known] of this.requests)
        if ((known.ended ? known.ended.at : known.seen) < before && (known.ended || known.first !== null))
          this.requests.delete(number);
    }
    // The last of a rising list that is not behind `time`.
    static at(list, time, end = (one) => one.end) {
      let low = 0, high = list.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (end(list[middle]) <= time + 1e-6) low = middle + 1;
        else high = middle;
      }
      return low - 1;
    }
    frameAt(time) {
      return this.frames[Math.max(0, History.at(this.frames, time))] || null;
    }
    mapAt(time) {
      return this.maps[Math.max(0, History.at(this.maps, time))] || null;
    }
    // The run at a place of the picture.
    runAt(row, time) {
      const runs = this.rows[row] || [], run = runs[History.at(runs, time, (one) => one.start)];
      return run && run.end >= time ? run : null;
    }
    runsOf(number) {
      const found = [];
      for (const runs of this.rows) if (runs) for (const run of runs) if (run.sequence === number) found.push(run);
      return found.sort((one, other) => one.start - other.start);
    }
    // As lines that a replay shows again.
    saved() {
      const byFrame = new Map(this.frames.map((frame, place) => [place, { type: "frame", ...frame, runs: [], steps: [], requests: [] }]));
      const into = (time) => byFrame.get(Math.min(this.frames.length - 1, Math.max(0, History.at(this.frames, time) + 1)));
      for (const runs of this.rows) for (const run of runs || []) {
        const frame = into(run.end);
        if (frame) frame.runs.push([run.row, run.sequence, run.work, run.start, run.end, run.tokens]);
      }
      for (const step of this.steps) if (into(step[1])) into(step[1]).steps.push(step);
      for (const map of this.maps) {
        const frame = byFrame.get(History.at(this.frames, map.end));
        if (frame) Object.assign(frame, { holders: map.holders, blocks: { ...frame.blocks, map: map.map, per_cell: map.perCell, host: map.host, disk: map.disk } });
      }
      for (const known of this.requests.values()) if (known.ended && into(known.ended.at)) (into(known.ended.at).ended ??= []).push(known.ended);
      const infos = [...this.requests.values()].map((known) => known.info).filter((info) => info.request_id);
      const hello = { ...this.hello, source: "record", span: [this.start, this.end], requests: infos };
      const lines = [hello, ...byFrame.values()];
      return lines.map((one) => JSON.stringify({ ...one, preempted: undefined, waiting: undefined, running: undefined }) + "\n");
    }
    // Who was computed beside a request, by seconds together.
    neighbours(number) {
      const mine = this.runsOf(number).filter((run) => run.work < 3);
      const beside = new Map();
      for (const runs of this.rows)
        for (const run of runs || []) {
          if (run.sequence === number || run.work > 2) continue;
          for (const own of mine) {
            const together = Math.min(own.end, run.end) - Math.max(own.start, run.start);
            if (together > 0) beside.set(run.sequence, (beside.get(run.sequence) || 0) + together);
          }
        }
      return [...beside].sort((one, other) => other[1] - one[1]);
    }
  }
  ns.History = History;
})((window.inflight ??= {}));
