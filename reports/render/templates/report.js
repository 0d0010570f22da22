"use strict";
// The list of checkpoints: search, filters, order, and what a row opens. All text goes into the page
// as text (textContent), never as markup. The state is the address's part behind "#", so that a view
// can be linked to.
(() => {
  const index = JSON.parse(document.getElementById("index").textContent);
  const [STATUS, BLOCK, DEVICE, DTYPE, RECORDING, ID, SHARE, GATE, ERROR, REFERENCE, CHANGE, RUN] =
    Array(12).keys();
  const PAGE = 40;
  const SKIPPED = ["blind", "unsupported"];
  const form = document.getElementById("filters");
  const list = document.querySelector("#list tbody");
  const columns = document.querySelectorAll("#list thead th").length;
  const more = document.getElementById("more");
  const chunks = document.querySelectorAll("script.details");
  const parsed = new Map();
  const name = (number) => index.names[number];
  const failed = (row) => !["pass", ...SKIPPED].includes(name(row[STATUS]));
  const texts = index.rows.map((row) =>
    [row[ID], ...[STATUS, BLOCK, DEVICE, DTYPE, RECORDING, GATE].map((at) => name(row[at])),
      index.runs[row[RUN]]].join(" ").toLowerCase());
  let found = [];
  let shown = 0;

  function element(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "share") made.style.setProperty("--share", value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function number(value) {
    if (value === "inf") return Infinity;
    if (value === "-inf") return -Infinity;
    return typeof value === "number" ? value : NaN;
  }

  function figure(value) {
    const x = number(value);
    if (Number.isNaN(x)) return "–";
    if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e-3 && size < 1e5) return String(Number(x.toPrecision(size < 100 ? 2 : 3)));
    return x.toExponential(1).replace("e+", "e");
  }

  function details(at) {
    const chunk = Math.floor(at / index.chunk);
    if (!parsed.has(chunk)) parsed.set(chunk, JSON.parse(chunks[chunk].textContent));
    return parsed.get(chunk)[at % index.chunk];
  }

  function share(value) {
    const x = number(value);
    if (Number.isNaN(x)) return "";
    const beyond = x > 1;
    return element("span", { class: beyond ? "share beyond" : "share" },
      element("i", { share: Math.min(x, 1), "aria-hidden": "true" }), (beyond ? "✕ " : "") + (x < 10 ? x.toFixed(2) : figure(value)));
  }

  function table(heads, rows) {
    const head = element("tr", {}, ...heads.map((words) => element("th", { scope: "col" }, words)));
    const body = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, cell))));
    return element("div", { class: "scroll" },
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...body)));
  }

  function command(words) {
    return element("div", { class: "command" }, element("code", {}, words),
      element("button", { type: "button", class: "copy" }, "Copy"));
  }

  function strip([axis, energy]) {
    const largest = Math.max(...energy.map(number)) || 1;
    return element("div", {}, element("span", { class: "faint" }, `${name(axis)} (${energy.length})`),
      element("div", { class: "strip", role: "img", "aria-label": `error along ${name(axis)}` },
        ...energy.map((x) => element("i", { share: Math.sqrt(number(x) / largest).toFixed(2) }))));
  }

  function histogram(counts) {
    const most = Math.log1p(Math.max(...counts));
    const label = "elements by octave of scaled error, from below 1/16 of a rounding, heights logarithmic";
    return element("div", {},
      element("div", { class: "bars", role: "img", "aria-label": label },
        ...counts.map((count, i) => element("i", {
          style: `height:${(100 * Math.log1p(count) / most).toFixed(0)}%`,
          title: `${i === 0 ? "below 2^-4" : `2^${i - 5} to 2^${i - 4}`} roundings: ${count}`,
        }))),
      element("span", { class: "faint" }, label));
  }

  function output(it) {
    const gates = it.gates.map(([gate, statistic, limit, , where, factors]) => [
      name(gate), figure(statistic), figure(limit),
      share(limit === 0 ? "inf" : statistic === "nan" ? "inf" : number(statistic) / number(limit)),
      factors.map(([factor, x]) => `${name(factor)} ${figure(x)}`).join(" · "), where]);
    const parts = [element("h4", {}, `Output ${name(it.name)}`)];
    if (gates.length) {
      parts.push(table(["gate", "statistic", "limit", "share of limit", "derived from", "worst at"], gates));
    }
    const facts = [`error ${figure(it.error)}, the reference's own ${figure(it.reference)}`];
    if (it.bits) facts.push(`bits of the contract's model: ${it.bits[1] - it.bits[0]} of ${it.bits[1]}`);
    if (it.zero) facts.push(`${it.zero} gates that allow nothing passed`);
    parts.push(element("p", { class: "faint" }, facts.join("; ")));
    if (it.where) parts.push(element("p", {}, `Where: ${it.where}`), ...it.maps.map(strip));
    if (it.groups && it.groups.length) {
      parts.push(table(["family", "worst groups", "error"],
        it.groups.map(([family, group, value]) => [name(family), group, figure(value)])));
    }
    if (it.octaves.length) parts.push(histogram(it.octaves));
    return parts;
  }

  function opened(at) {
    const it = details(at);
    const row = index.rows[at];
    const parts = [];
    if (it.why) parts.push(element("pre", {}, it.why.filter(Boolean).join("\n")));
    if (it.again) parts.push(command(it.again));
    const facts = [
      ["contract", name(it.contract)], ["ran", it.impl.map(name).join(", ")], ["can see", it.sees.map(name).join(", ")],
      ["known bug", it.bug || ""], ["roundings", it.rounds || ""],
      ["blind to", it.blind.map(name).join(", ")], ["output", it.bits], ["recording", it.golden],
      ["repeats", it.repeats], ["run", index.runs[row[RUN]]],
    ];
    parts.push(element("div", { class: "facts faint" },
      ...facts.filter(([, value]) => value).map(([key, value]) => element("span", {}, `${key}: ${value}`))));
    parts.push(...it.outputs.flatMap(output));
    if (it.chain) {
      parts.push(element("h4", {}, "Chain"), table(
        ["module", "introduced", "inherited", "error", "limit", "reference's", "diagnosis"],
        it.chain.map((cells) => [cells[0], ...cells.slice(1, 6).map(figure), name(cells[6])])));
    }
    return element("tr", { class: "open" }, element("td", { colspan: columns },
      element("div", { class: "opened" }, ...parts)));
  }

  function line(at) {
    const row = index.rows[at];
    const status = name(row[STATUS]);
    const kind = failed(row) ? "failed" : SKIPPED.includes(status) ? "skipped" : "passed";
    const button = element("button", { type: "button", class: "row", "aria-expanded": "false", "data-row": at },
      element("b", {}, row[ID]), element("span", {}, `${name(row[BLOCK])} · ${name(row[RECORDING])}`),
      element("span", { class: "narrow" }, `${name(row[DEVICE])} · ${name(row[DTYPE])}`));
    const cells = [
      element("td", {}, element("span", { class: `status ${kind}` }, status.replaceAll("_", " "))), element("td", {}, button),
      element("td", {}, name(row[DEVICE])), element("td", {}, name(row[DTYPE])), element("td", {}, share(row[SHARE])),
      element("td", { class: "n wide" }, figure(row[ERROR])), element("td", { class: "n wide" }, figure(row[REFERENCE])),
    ];
    if (columns > cells.length) {
      const change = number(row[CHANGE]);
      const words = Number.isNaN(change) ? "–" : `${figure(change)}×`;
      cells.push(element("td", { class: change > 1.5 ? "n wide bad" : "n wide" }, words));
    }
    return element("tr", {}, ...cells);
  }

  function showMore() {
    list.append(...found.slice(shown, shown + PAGE).map(line));
    shown = Math.min(found.length, shown + PAGE);
    more.hidden = shown === found.length;
    more.textContent = `Show more (${found.length - shown} left)`;
  }

  function toggle(button) {
    const open = button.getAttribute("aria-expanded") === "true";
    const row = button.closest("tr");
    if (open) row.nextElementSibling.remove();
    else row.after(opened(Number(button.dataset.row)));
    button.setAttribute("aria-expanded", String(!open));
    remember(open ? "" : button.dataset.row);
  }

  const over = (a, b) => (number(b) > 0 ? number(a) / number(b) : -1);
  const largest = (key) => (a, b) => (key(index.rows[b]) || 0) - (key(index.rows[a]) || 0) || a - b;
  const orders = {
    "": (a, b) => failed(index.rows[b]) - failed(index.rows[a]) || orders.share(a, b),
    share: largest((row) => Math.min(number(row[SHARE]), 1e300)),
    reference: largest((row) => Math.min(over(row[ERROR], row[REFERENCE]), 1e300)),
    baseline: largest((row) => Math.min(number(row[CHANGE]), 1e300)),
    name: (a, b) => a - b,
  };

  function update() {
    const state = Object.fromEntries(new FormData(form));
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [["status", STATUS], ["block", BLOCK], ["device", DEVICE], ["dtype", DTYPE]]
      .filter(([field]) => state[field] !== "");
    found = [...index.rows.keys()].filter((at) =>
      chosen.every(([field, column]) => name(index.rows[at][column]) === state[field]) &&
      words.every((word) => texts[at].includes(word)));
    found.sort(orders[state.sort] || orders[""]);
    document.getElementById("found").textContent =
      `${found.length.toLocaleString("en")} of ${index.rows.length.toLocaleString("en")} checkpoints`;
    list.replaceChildren();
    shown = 0;
    showMore();
  }

  // The address of this view, with the row that was opened last.
  function remember(row) {
    const state = [...new FormData(form), ["row", row]].filter(([, value]) => value);
    history.replaceState(null, "", state.length ? `#${new URLSearchParams(state)}` : "#checkpoints");
  }

  function changed() {
    update();
    remember("");
  }

  function restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const control of form.elements) if (control.name) control.value = state.get(control.name) || "";
    update();
    const place = state.has("row") ? found.indexOf(Number(state.get("row"))) : -1;
    while (shown <= place) showMore();
    const button = place < 0 ? null : list.children[place].querySelector("button");
    if (button) toggle(button);
    if (button || [...state.keys()].some((key) => form.elements[key])) (button || form).scrollIntoView();
  }

  function fill(field, column) {
    const words = new Set(index.rows.map((row) => name(row[column])));
    for (const word of [...words].sort()) form.elements[field].append(element("option", { value: word }, word));
  }

  async function copy(button) {
    const text = button.previousElementSibling.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.classList.contains("copy")) copy(button);
    else if (button.classList.contains("row")) toggle(button);
    else if (button.classList.contains("pick")) {
      form.reset();
      for (const field of ["block", "device", "dtype", "status"]) form.elements[field].value = button.dataset[field];
      changed();
      document.getElementById("checkpoints").scrollIntoView();
    }
  });
  [["status", STATUS], ["block", BLOCK], ["device", DEVICE], ["dtype", DTYPE]].forEach((it) => fill(...it));
  more.addEventListener("click", showMore);
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(changed));
  addEventListener("hashchange", restore);
  restore();
})();
