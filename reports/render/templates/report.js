"use strict";
// The list of checkpoints: search, filters, order, and what a row opens. All text goes into the page
// as text (textContent), never as markup. The state is the address's part behind "#", so that a view
// can be linked to.
(async () => {
  const PAGE = 40;
  const SKIPPED = ["blind", "unsupported"];
  const FILTERS = ["status", "block", "device", "dtype"];
  const form = document.getElementById("filters");
  const list = document.querySelector("#list tbody");
  const columns = document.querySelectorAll("#list thead th").length;
  const more = document.getElementById("more");
  const counted = document.getElementById("found");
  const chunks = document.querySelectorAll("script.details");

  // What a script element holds is JSON, compressed, in base64.
  async function unpacked(script) {
    const packed = Uint8Array.from(atob(script.textContent), (letter) => letter.charCodeAt(0));
    const text = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Response(text).json();
  }

  counted.textContent = "Unpacking the list …";
  let index;
  try {
    index = await unpacked(document.getElementById("index"));
  } catch (error) {
    counted.textContent = `The list cannot be unpacked; a browser of 2023 or newer can. (${error})`;
    return;
  }
  const column = index.columns;
  const count = column.id.length;
  const parsed = new Map();
  const name = (number) => index.names[number];
  const word = (field, at) => name(column[field][at]);
  const failing = index.names.map((status) => !["pass", ...SKIPPED].includes(status));
  const failed = (at) => failing[column.status[at]];
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

  // Rows that are opened one after the other are often of one chunk: those are kept unpacked.
  async function details(at) {
    const chunk = Math.floor(at / index.chunk);
    if (!parsed.has(chunk)) {
      if (parsed.size >= 8) parsed.delete(parsed.keys().next().value);
      parsed.set(chunk, unpacked(chunks[chunk]));
    }
    return (await parsed.get(chunk))[at % index.chunk];
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

  // A heat map: one pixel a cell, enlarged by the style; a shade for every halving of the error.
  function picture([[rows, height], [across, width], levels]) {
    const label = `error by ${name(rows)} (${height}, downwards) and ${name(across)} (${width})`;
    const canvas = element("canvas", { class: "picture", role: "img", "aria-label": label,
      width: levels[0].length, height: levels.length });
    const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue("--tint").split(" ").map(Number);
    const pixels = levels.flat().flatMap((level) => [red, green, blue, Math.round(level * 17)]);
    canvas.getContext("2d").putImageData(new ImageData(Uint8ClampedArray.from(pixels), levels[0].length), 0, 0);
    return element("div", {}, element("span", { class: "faint" }, label), canvas);
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
    if (it.picture) parts.push(picture(it.picture));
    if (it.groups && it.groups.length) {
      parts.push(table(["family", "worst groups", "error"],
        it.groups.map(([family, group, value]) => [name(family), group, figure(value)])));
    }
    if (it.octaves.length) parts.push(histogram(it.octaves));
    return parts;
  }

  async function opened(at) {
    const it = await details(at);
    const parts = [];
    if (it.why) parts.push(element("pre", {}, it.why.filter(Boolean).join("\n")));
    if (it.again) parts.push(command(it.again));
    const facts = [
      ["contract", name(it.contract)], ["ran", it.impl.map(name).join(", ")], ["can see", it.sees.map(name).join(", ")],
      ["known bug", it.bug || ""], ["roundings", it.rounds || ""],
      ["blind to", it.blind.map(name).join(", ")], ["output", it.bits], ["recording", it.golden],
      ["repeats", it.repeats], ["run", index.runs[column.run[at]]],
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
    const status = word("status", at);
    const kind = failed(at) ? "failed" : SKIPPED.includes(status) ? "skipped" : "passed";
    const [block, device, dtype, recording] = ["block", "device", "dtype", "recording"].map((field) => word(field, at));
    const button = element("button", { type: "button", class: "row", "aria-expanded": "false", "data-row": at },
      element("b", {}, column.id[at]), element("span", {}, `${block} · ${recording}`),
      element("span", { class: "narrow" }, `${device} · ${dtype}`));
    const cells = [
      element("td", {}, element("span", { class: `status ${kind}` }, status.replaceAll("_", " "))), element("td", {}, button),
      element("td", {}, device), element("td", {}, dtype), element("td", {}, share(column.share[at])),
      element("td", { class: "n wide" }, figure(column.error[at])), element("td", { class: "n wide" }, figure(column.reference[at])),
    ];
    if (columns > cells.length) {
      const change = number(column.change[at]);
      const words = Number.isNaN(change) ? "–" : `${figure(change)}×`;
      cells.push(element("td", { class: change > 1.5 ? "n wide bad" : "n wide" }, words));
    }
    return element("tr", {}, ...cells);
  }

  function showMore() {
    list.append(...Array.from(found.slice(shown, shown + PAGE), line));
    shown = Math.min(found.length, shown + PAGE);
    more.hidden = shown === found.length;
    more.textContent = `Show more (${found.length - shown} left)`;
  }

  async function toggle(button) {
    const open = button.getAttribute("aria-expanded") === "true";
    const row = button.closest("tr");
    button.setAttribute("aria-expanded", String(!open));
    remember(open ? "" : button.dataset.row);
    if (open) {
      if (row.nextElementSibling?.classList.contains("open")) row.nextElementSibling.remove();
      return;
    }
    const made = await opened(Number(button.dataset.row));
    const still = button.getAttribute("aria-expanded") === "true";
    if (still && !row.nextElementSibling?.classList.contains("open")) row.after(made);
  }

  const over = (a, b) => (number(b) > 0 ? number(a) / number(b) : -1);
  const keys = {
    share: (at) => number(column.share[at]),
    reference: (at) => over(column.error[at], column.reference[at]),
    baseline: (at) => number(column.change[at]),
    name: () => 0,
  };
  const orders = new Map();

  // All checkpoints in an order, which is worked out once: to filter keeps it.
  function ordered(order) {
    if (!orders.has(order)) {
      const key = Float64Array.from({ length: count }, (_, at) => Math.min((keys[order] || keys.share)(at), 1e300) || 0);
      const first = Uint8Array.from({ length: count }, (_, at) => (order ? 0 : failed(at)));
      const all = Uint32Array.from({ length: count }, (_, at) => at);
      orders.set(order, all.sort((a, b) => first[b] - first[a] || key[b] - key[a] || a - b));
    }
    return orders.get(order);
  }

  let small = null; // the ids in small letters, from the first search on
  const searched = ["status", "block", "device", "dtype", "recording", "gate"];

  // Whether a checkpoint has the words in its id, in another word of it or in its run's name.
  function searcher(words) {
    small ??= column.id.map((id) => id.toLowerCase());
    const tests = words.map((sought) => {
      const names = index.names.map((it) => it.toLowerCase().includes(sought));
      const runs = index.runs.map((it) => it.toLowerCase().includes(sought));
      const columns = searched.map((field) => column[field]);
      return (at) => columns.some((numbers) => names[numbers[at]]) || runs[column.run[at]] || small[at].includes(sought);
    });
    return (at) => tests.every((test) => test(at));
  }

  function update() {
    const state = Object.fromEntries(new FormData(form));
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    const tests = FILTERS.filter((field) => state[field] !== "").map((field) => {
      const sought = index.names.indexOf(state[field]);
      return (at) => column[field][at] === sought;
    });
    if (words.length) tests.push(searcher(words));
    found = ordered(state.sort).filter((at) => tests.every((test) => test(at)));
    counted.textContent = `${found.length.toLocaleString("en")} of ${count.toLocaleString("en")} checkpoints`;
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

  function fill(field) {
    const words = [...new Set(column[field])].map(name);
    for (const word of words.sort()) form.elements[field].append(element("option", { value: word }, word));
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

  // Lists what a cell of the matrix or of a map of layers stands for.
  function pick(chosen) {
    form.reset();
    for (const field of ["q", ...FILTERS]) form.elements[field].value = chosen[field] || "";
    changed();
    document.getElementById("checkpoints").scrollIntoView();
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    const cell = event.target.closest(".layers td[data-q]");
    if (cell) pick({ ...cell.parentElement.querySelector("button").dataset, q: cell.dataset.q });
    if (!button) return;
    if (button.classList.contains("copy")) copy(button);
    else if (button.classList.contains("row")) toggle(button);
    else if (button.classList.contains("pick")) pick(button.dataset);
  });
  FILTERS.forEach(fill);
  more.addEventListener("click", showMore);
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(changed));
  addEventListener("hashchange", restore);
  restore();
})();
