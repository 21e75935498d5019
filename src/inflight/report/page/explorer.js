// The explorer of a plan: sliders over runs that were simulated. It counts on nothing that lies beyond a run.
"use strict";
(function () {
  const found = JSON.parse(document.getElementById("explored").textContent);
  const get = (id) => document.getElementById(id), STEPS = 200, SHARES = ["p50", "p95", "p99"], NEARLY = 0.999;
  const METRICS = ["ttft", "tpot", "itl", "e2e"], LIMITED = ["ttft", "tpot", "itl"];
  const NAMES = { ttft: "TTFT", tpot: "TPOT", itl: "ITL", e2e: "E2E" };
  const BOUNDS = {
    compute: ["arithmetic", "s1"], bandwidth: ["reading memory", "s2"], link: ["adding up results between GPUs", "s3"],
    launch: ["fixed costs of steps", "s7"], steps: ["measured steps, not separated", "s1"],
  };

  // -- scales of the sliders: logarithmic; a limit's last step is no limit -------------------------------------------
  const log = (low, high) => ({ of: (at) => low * (high / low) ** (at / STEPS), at: (value) => Math.round((STEPS * Math.log(value / low)) / Math.log(high / low)) });
  const limit = (low, high) => {
    const scale = log(low, high);
    return { of: (at) => (at >= STEPS ? null : scale.of(at)), at: (value) => (value === null ? STEPS : Math.min(STEPS - 1, Math.max(0, scale.at(value)))) };
  };
  const known = found.layouts.map((one) => one.price).filter((one) => one !== null);
  const dearest = Math.max(10, 4 * Math.max(0, ...known));
  const scales = {
    rate: log(found.rate / 20, found.rate * 20), ttft: limit(20, 60000), tpot: limit(2, 2000), itl: limit(2, 20000),
    price: { of: (at) => (dearest * at) / STEPS, at: (value) => Math.round((STEPS * value) / dearest) },
  };
  let exact = {}; // values that were asked for, which no step of a slider may hit

  const number = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(3)));
  const ms = (seconds) => (seconds === null || seconds === undefined ? "-" : `${number(seconds * 1e3)} ms`);
  // A time that misses a limit in milliseconds, with as many digits as distinguish it from that.
  const beyond = (seconds, limit) => {
    const time = seconds * 1e3;
    let digits = 3;
    while (digits < 9 && time > limit && time.toPrecision(digits) === limit.toPrecision(digits)) digits += 1;
    return digits === 3 ? ms(seconds) : `${+time.toPrecision(digits)} ms`;
  };
  const money = (value) => {
    const digits = value > 0 && value < 0.01 ? 1 - Math.floor(Math.log10(value)) : 2;
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  };
  const value = (name) => (name in exact ? exact[name] : scales[name].of(+get(name).value));

  // -- runs of a layout ----------------------------------------------------------------------------------------------
  const END = { typical: ["latency", "saturated"], low: ["low", "fast_saturated"], high: ["high", "slow_saturated"] };
  const isSaturated = (run, end) => run[END[end][1]];
  const latency = (run, end, metric, share) => (run[END[end][0]][metric] || [])[share] ?? null;
  function missed(run, end, asked) {
    return LIMITED.filter((metric) => asked[metric] !== null && (latency(run, end, metric, asked.share) ?? 0) * 1e3 > asked[metric]);
  }
  // Straight lines in the logarithm.
  const between = (x, [x0, y0], [x1, y1]) => Math.exp(Math.log(y0) + ((Math.log(y1) - Math.log(y0)) * (x - x0)) / (x1 - x0));
  function crossing(one, next, end, metric, asked) {
    const [low, high] = [one, next].map((run) => latency(run, end, metric, asked.share)), at = asked[metric] / 1e3;
    if (!low || !high || high <= low) return one.rate;
    return one.rate + ((next.rate - one.rate) * (Math.log(at) - Math.log(low))) / (Math.log(high) - Math.log(low));
  }
  // The highest rate of a replica: of the runs that meet the limits up to the first that does not, and towards that one.
  function highest(layout, end, asked) {
    let best = null;
    for (const [at, run] of layout.runs.entries()) {
      if (isSaturated(run, end)) return { ...best, rate: best?.rate ?? 0, run: best?.run ?? run, stop: "saturated", next: run };
      const first = missed(run, end, asked);
      if (first.length) {
        if (!best) return { rate: 0, run, stop: first[0], next: run };
        const rates = first.map((metric) => [crossing(layout.runs[at - 1], run, end, metric, asked), metric]).sort((one, other) => one[0] - other[0]);
        return { rate: Math.max(best.rate, rates[0][0]), run: best.run, stop: rates[0][1], next: run };
      }
      best = { rate: run.rate, run };
    }
    return { ...best, stop: "", next: null };
  }
  const replicasAt = (rate, highestRate) => (highestRate > 0 ? Math.max(1, Math.ceil((rate / highestRate) * NEARLY)) : Infinity);

  // Values at a load: of the two runs beside it.
  function at(layout, rate, end, metric, share) {
    const runs = layout.runs.filter((run) => !isSaturated(run, end) && latency(run, end, metric, share) !== null);
    if (!runs.length) return null;
    if (rate <= runs[0].rate) return latency(runs[0], end, metric, share);
    const next = runs.findIndex((run) => run.rate >= rate * NEARLY);
    if (next < 0) return null;
    const [one, other] = [runs[Math.max(0, next - 1)], runs[next]].map((run) => [run.rate, latency(run, end, metric, share)]);
    return other[0] === one[0] || !one[1] || !other[1] ? other[1] : between(Math.min(rate, other[0]), one, other);
  }
  function nearest(layout, rate) {
    const runs = layout.runs.filter((run) => !run.saturated);
    return (runs.length ? runs : layout.runs).reduce((best, run) => (Math.abs(Math.log(run.rate / rate)) < Math.abs(Math.log(best.rate / rate)) ? run : best));
  }

  // -- the answer ----------------------------------------------------------------------------------------------------
  function answered(layout, asked) {
    const top = highest(layout, "typical", asked), replicas = replicasAt(asked.rate, top.rate);
    const fast = layout.runs[0].low.ttft ? replicasAt(asked.rate, highest(layout, "low", asked).rate) : null;
    const slow = layout.runs[0].high.ttft ? replicasAt(asked.rate, highest(layout, "high", asked).rate) : null;
    return { layout, top, replicas, gpus: replicas * layout.gpus, fast, slow, each: asked.rate / replicas };
  }
  function chosen(asked) {
    const all = found.layouts.map((layout) => answered(layout, asked));
    if (asked.layout !== "") return all[+asked.layout];
    return all.reduce((best, one) => (one.gpus < best.gpus || (one.gpus === Infinity && best.gpus === Infinity && one.top.run.rate > best.top.run.rate) ? one : best));
  }

  function show(id, text, more) {
    get(id).textContent = text;
    if (more !== undefined) get(`${id}-more`).textContent = more;
  }
  function verdict({ layout, top, replicas, each }, asked) {
    const end = SHARES[asked.share], { stop, next, run } = top;
    if (replicas === Infinity) {
      if (stop === "saturated") return `${layout.name}: saturated even at ${number(next.rate)} requests/s of a replica, the lowest load that was simulated.`;
      return `No number of replicas keeps the limits: at ${number(run.rate)} requests/s of a replica, the lowest load that was simulated, ${NAMES[stop]} ${end} is ${beyond(latency(run, "typical", stop, asked.share), asked[stop])}, above ${number(asked[stop])} ms.`;
    }
    const parts = [`${layout.name}: a replica keeps the limits up to ${number(top.rate)} requests/s.`];
    if (!stop) parts.push("No run missed them; at higher loads nothing was simulated, so nothing more is counted on.");
    else if (stop === "saturated") parts.push(`The run at ${number(next.rate)} is saturated: no rate between the two is counted on.`);
    else parts.push(`${NAMES[stop]} ${end} is missed first: ${beyond(latency(next, "typical", stop, asked.share), asked[stop])} in the run at ${number(next.rate)}; the rate is interpolated from the run at ${number(run.rate)}.`);
    if (replicas < layout.pooled) parts.push(`${layout.pooled} replicas behind a router were simulated: ${replicas === 1 ? "one alone evens" : "fewer even"} bursts out less, so plan this rate again before you buy.`);
    if (each < layout.runs[0].rate) parts.push("The load is below the lowest run, whose latencies are shown: they are at most these.");
    return parts.join(" ");
  }
  function basis({ layout, each }) {
    const runs = layout.runs, upper = runs.findIndex((run) => run.rate >= each * NEARLY);
    const beside = upper > 0 ? `Interpolated between the runs at ${number(runs[upper - 1].rate)} and ${number(runs[upper].rate)} requests/s of a replica` : `Of the run at ${number(runs[Math.max(0, upper)].rate)} requests/s of a replica`;
    const interval = runs[0].low.ttft ? "; below each value with all that is uncertain of step times at its fast and at its slow end" : "; without an interval, which --fast leaves out";
    return `${beside}${interval}. p99 rests on ${nearest(layout, each).requests.toLocaleString("en")} requests.`;
  }

  function latencies(one, asked) {
    for (const metric of METRICS) {
      const cells = get(`${metric}-row`).querySelectorAll("td");
      cells.forEach((cell, share) => {
        const is = (end) => (one.replicas === Infinity ? latency(one.top.run, end, metric, share) : at(one.layout, one.each, end, metric, share));
        const [typical, low, high] = ["typical", "low", "high"].map(is);
        cell.textContent = ms(typical);
        if (typical !== null && low !== null) {
          const small = document.createElement("small");
          small.textContent = `${number(low * 1e3)} to ${high === null ? "no end" : number(high * 1e3)}`;
          cell.append(small);
        }
        cell.style.fontWeight = share === asked.share && LIMITED.includes(metric) && asked[metric] !== null ? "650" : "";
      });
    }
  }
  function bottleneck(one) {
    const run = nearest(one.layout, one.replicas === Infinity ? one.top.run.rate : one.each), bar = get("account");
    const parts = Object.entries(run.shares).sort((a, b) => b[1] - a[1]), total = parts.reduce((sum, [, share]) => sum + share, 0) || 1;
    bar.replaceChildren(...parts.map(([bound, share]) => {
      const part = document.createElement("i");
      part.style.width = `${(100 * share) / total}%`;
      part.style.background = `var(--${(BOUNDS[bound] || ["", "s7"])[1]})`;
      return part;
    }));
    const spent = parts.filter(([, share]) => share >= 0.02).map(([bound, share]) => `${Math.round(100 * share)} % ${(BOUNDS[bound] || [bound])[0]}`);
    const memory = run.is_full ? "Memory for keys and values bounds the batch. " : "";
    get("bottleneck").textContent = `${memory}A step takes ${ms(run.step_seconds)} with ${number(Math.round(run.rows))} ${Math.round(run.rows) === 1 ? "sequence" : "sequences"}${spent.length ? `: ${spent.join(", ")}` : ""}.`;
    get("settings").textContent = Object.entries(one.layout.settings).map(([name, set]) => `--${name}\u00a0${set}`.replaceAll("-", "\u2011")).join("  ");
  }

  function plot(metric, one, asked) {
    const runs = one.layout.runs.filter((run) => !run.saturated), share = asked.share;
    const series = { name: NAMES[metric], colour: metric === "ttft" ? "s1" : "s2", values: runs.map((run) => latency(run, "typical", metric, share)) };
    if (runs.length && runs[0].low.ttft) {
      series.low = runs.map((run) => latency(run, "low", metric, share));
      series.high = runs.map((run) => latency(run, "high", metric, share));
    }
    const values = [...series.values, ...(series.high || [])].filter((value) => value), high = Math.max(...values, 0), low = Math.min(...values);
    const unit = high < 1 ? [1e-3, "ms"] : [1, "s"], limited = asked[metric];
    const drawn = { kind: "lines", xs: runs.map((run) => run.rate), series: [series], x: { label: "requests/s of a replica" }, y: { label: `${NAMES[metric]} ${SHARES[share]}, ${unit[1]}`, unit: unit[1], factor: unit[0], log: high > 20 * low } };
    if (limited !== null && limited / 1e3 < 3 * high && limited / 1e3 > low / 3) drawn.limit = limited / 1e3;
    const left = one.layout.runs.length - runs.length;
    get(`${metric}-about`).textContent = `Runs of ${one.layout.name}; the band is what is uncertain, the dashed line the limit.${left ? ` ${left} saturated at higher loads ${left === 1 ? "is" : "are"} left out.` : ""}`;
    if (runs.length > 1) get(`${metric}-plot`).dispatchEvent(new CustomEvent("plot", { detail: drawn }));
  }

  function update() {
    const asked = { share: +document.querySelector("[name=share]:checked").value, layout: get("layout").value };
    for (const name of Object.keys(scales)) asked[name] = value(name);
    show("rate-value", `${number(asked.rate)}/s`);
    for (const metric of LIMITED) show(`${metric}-value`, asked[metric] === null ? "no limit" : `${number(asked[metric])} ms`);
    show("price-value", asked.price ? `${money(asked.price)} $` : "not known");
    for (const input of document.querySelectorAll("input[type=range]")) input.setAttribute("aria-valuetext", get(`${input.id}-value`).textContent);
    const one = chosen(asked), is = one.replicas !== Infinity;
    const span = one.fast === null || !is ? "" : one.fast === one.slow ? "at both ends, too" : `${number(one.fast)} to ${one.slow === Infinity ? "no end" : number(one.slow)}`;
    show("replicas", is ? number(one.replicas) : "none", span);
    show("gpus", is ? number(one.gpus) : "-", is ? `${one.layout.gpus} of each replica` : "");
    for (const [name, count] of [["replicas", one.replicas], ["gpus", one.gpus]]) {
      const title = get(`${name}-title`);
      title.textContent = title.textContent.replace(/s?$/, count === 1 ? "" : "s");
    }
    show("each", is ? number(one.each) : "-", is ? `${Math.round((100 * one.each) / one.top.rate)} % of the highest` : "");
    const hour = is && asked.price ? one.gpus * asked.price : null;
    show("hour", hour === null ? "-" : money(hour), hour === null || one.slow === null ? "" : `${money(one.fast * one.layout.gpus * asked.price)} to ${one.slow === Infinity ? "no end" : money(one.slow * one.layout.gpus * asked.price)}`);
    show("million", hour === null ? "-" : money((hour / (asked.rate * (found.output_tokens || 1) * 3600)) * 1e6), ""); // vectors: of texts
    show("verdict", verdict(one, asked));
    show("basis", is ? basis(one) : "Of the lowest load that was simulated.");
    latencies(one, asked);
    bottleneck(one);
    plot("ttft", one, asked);
    plot("tpot", one, asked);
  }
  function reset() {
    exact = { rate: found.rate, price: known.length ? known[0] : 0, ...found.limits };
    for (const name of Object.keys(scales)) get(name).value = scales[name].at(exact[name]);
    document.querySelector(`[name=share][value="${found.share}"]`).checked = true;
    get("layout").value = "";
    update();
  }
  get("sliders").addEventListener("input", (event) => {
    delete exact[event.target.id];
    update();
  });
  get("sliders").addEventListener("reset", (event) => {
    event.preventDefault();
    reset();
  });
  get("sliders").addEventListener("submit", (event) => event.preventDefault());
  reset();
})();
