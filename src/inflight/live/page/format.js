// Words and numbers, and elements made of them. Text is always text: nothing here makes HTML of a string.
"use strict";
(function (ns) {
  const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
  function seconds(value) {
    if (!isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size < 5e-5) return "0 ms";
    if (size < 0.0995) return (value * 1e3).toFixed(size < 0.00995 ? 1 : 0) + " ms";
    if (size < 0.9995) return (value * 1e3).toFixed(0) + " ms";
    if (size < 99.5) return value.toFixed(size < 9.95 ? 2 : 1) + " s";
    if (size < 5400) return (value / 60).toFixed(1) + " min";
    return (value / 3600).toFixed(1) + " h";
  }
  function count(value) {
    if (!isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size >= 1e6) return (value / 1e6).toFixed(size >= 1e7 ? 0 : 1) + " M";
    if (size >= 1e4) return (value / 1e3).toFixed(size >= 1e5 ? 0 : 1) + " k";
    if (size >= 100 || Number.isInteger(value)) return WHOLE.format(value);
    return value.toFixed(1);
  }
  function counted(number, one, several) {
    return `${count(number)} ${number === 1 ? one : several || one + "s"}`;
  }
  function share(value) {
    return isFinite(value) ? Math.round(value * 100) + " %" : "–";
  }
  // h("button", {class: "x", onclick: f}, "text", child): an element; strings become text nodes.
  function h(name, attributes, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (key === "style") for (const [rule, set] of Object.entries(value)) made.style.setProperty(rule, set);
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }
  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }
  // An id as it is shown: long ones without their middle.
  function shortened(text, most = 26) {
    return text.length <= most ? text : text.slice(0, most - 9) + "…" + text.slice(-8);
  }
  ns.format = { seconds, count, counted, share, h, setText, shortened };
})((window.inflight ??= {}));
