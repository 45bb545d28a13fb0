"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const page = read("page-data");
  const root = document.documentElement;
  const narrow = () => window.innerWidth < 560;

  const { expand, recolour, broken, unpack, font, extent } = window.ablationlab;

  /* ---- light and dark ---- */
  const wanted = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = window.localStorage.getItem("ablationlab-theme"); } catch (error) { chosen = null; }
  const dark = () => (chosen ? chosen === "dark" : wanted.matches);
  function paint() {
    root.dataset.theme = dark() ? "dark" : "light";
    const button = document.getElementById("theme");
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
  }
  paint();
  document.getElementById("theme").addEventListener("click", () => {
    chosen = dark() ? "light" : "dark";
    try { window.localStorage.setItem("ablationlab-theme", chosen); } catch (error) { /* private window: for this visit only */ }
    paint();
    redraw();
  });
  wanted.addEventListener("change", () => { if (!chosen) { paint(); redraw(); } });
  const print = document.getElementById("print");

  /* ---- the ablation table as text ---- */
  function copyByHand(text) { // where the clipboard is closed to the page
    const field = document.createElement("textarea");
    field.value = text;
    document.body.appendChild(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
  document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    const text = page.copies[button.dataset.copy];
    let done = true;
    try { await navigator.clipboard.writeText(text); } catch (error) { done = copyByHand(text); }
    document.getElementById("copied").textContent = done ? "Copied." : "Your browser refused to copy.";
  }));

  /* ---- what is selected ---- */
  const shown = { variants: [...page.variants], seeds: [...page.seeds], regimes: [...page.regimes] };
  const signals = () => ({ shown_variants: shown.variants, shown_seeds: shown.seeds, shown_regimes: shown.regimes });

  /* ---- the view in the address: #PLACE~key=value&key=value, only what is not as the page opens ---- */
  const drawing = { smooth: "0", axis: "", part: "" };
  const kinds = ["variants", "seeds", "regimes"];
  const zooms = new Map(); // by chart: what it is zoomed to, from and to on x, from and to on y
  function place() { return decodeURIComponent(location.hash.slice(1).split("~")[0]); }
  function readView() {
    const given = new URLSearchParams(location.hash.split("~")[1] || "");
    for (const kind of kinds) {
      const wanted = given.getAll(kind).filter((name) => page[kind].includes(name));
      shown[kind] = wanted.length ? page[kind].filter((name) => wanted.includes(name)) : [...page[kind]];
    }
    for (const name of Object.keys(drawing)) drawing[name] = given.get(name) || (name === "smooth" ? "0" : "");
    document.querySelectorAll("#curve-tools select").forEach((choice) => {
      if ([...choice.options].some((option) => option.value === drawing[choice.name])) choice.value = drawing[choice.name];
      else drawing[choice.name] = choice.value;
    });
    document.querySelectorAll("#comparison-filters select").forEach((choice) => {
      const wanted = given.get(`only-${choice.name}`) || "";
      if ([...choice.options].some((option) => option.value === wanted)) choice.value = wanted;
    });
    zooms.clear();
    for (const zoom of given.getAll("zoom")) {
      const [key, ...ends] = zoom.split(",");
      const range = ends.map(Number);
      if (range.length === 4 && range.every(Number.isFinite) && range[0] < range[1] && range[2] < range[3]) zooms.set(key, range);
    }
  }
  function writeView() {
    const view = new URLSearchParams();
    for (const kind of kinds) if (shown[kind].length < page[kind].length) shown[kind].forEach((name) => view.append(kind, name));
    if (drawing.smooth !== "0") view.set("smooth", drawing.smooth);
    for (const name of ["axis", "part"]) if (drawing[name]) view.set(name, drawing[name]);
    document.querySelectorAll("#comparison-filters select").forEach((choice) => { if (choice.value) view.set(`only-${choice.name}`, choice.value); });
    for (const [key, range] of zooms) view.append("zoom", [key, ...range.map((end) => Number(end.toPrecision(5)))].join(","));
    const text = String(view);
    const address = `#${encodeURIComponent(place())}${text ? `~${text}` : ""}`;
    if (address !== (location.hash || "#")) history.replaceState(null, "", address);
  }
  readView();
  document.getElementById("share").addEventListener("click", async (event) => {
    let done = true;
    try { await navigator.clipboard.writeText(location.href); } catch (error) { done = copyByHand(location.href); }
    event.target.textContent = done ? "Copied" : "See the address";
  });

  /* ---- charts ---- */
  /* The mean over neighbours of the same run, as many as the share of the longest run says. */
  function smoothed(rows) {
    const share = Number(drawing.smooth) / 100;
    if (!share || !rows.length || rows[0].run === undefined || rows[0].step === undefined) return rows;
    const last = rows.reduce((most, row) => Math.max(most, row.step), 0);
    const runs = new Map();
    rows.forEach((row) => { if (!runs.has(row.run)) runs.set(row.run, []); runs.get(row.run).push(row); });
    const out = [];
    for (const run of runs.values()) {
      run.sort((a, b) => a.step - b.step);
      let from = 0, to = 0, sum = 0;
      for (const row of run) {
        while (to < run.length && run[to].step <= row.step + share * last / 2) { sum += run[to].y; to += 1; }
        while (run[from].step < row.step - share * last / 2) { sum -= run[from].y; from += 1; }
        out.push({ ...row, y: sum / (to - from) });
      }
    }
    return out;
  }
  /* The chosen part of the steps, if a line is left of it, and the levels that lie beside what is left. */
  function cut(data) {
    const points = Object.values(data).flat().filter((row) => row.step !== undefined);
    if (!drawing.part || !points.length) return data;
    const last = points.reduce((most, row) => Math.max(most, row.step), 0);
    const [from, to] = drawing.part.split("-").map((end) => Number(end) / 100 * last);
    const kept = points.filter((row) => row.step >= from && row.step <= to);
    if (new Set(kept.map((row) => row.step)).size < 2) return data;
    const [low, high] = kept.reduce(([least, most], row) => [Math.min(least, row.y), Math.max(most, row.y)], [Infinity, -Infinity]);
    const room = 0.05 * (high - low);
    const left = (row) => (row.step !== undefined ? row.step >= from && row.step <= to : row.loss === undefined || (row.loss >= low - room && row.loss <= high + room));
    return Object.fromEntries(Object.entries(data).map(([name, rows]) => [name, rows.filter(left)]));
  }
  function withoutLegends(layer) {
    const encoding = Object.fromEntries(Object.entries(layer.encoding || {}).map(([name, channel]) =>
      [name, ["color", "strokeDash", "shape", "size"].includes(name) && channel.field ? { ...channel, legend: null } : channel]));
    return { ...layer, ...(layer.encoding ? { encoding } : {}), ...(layer.layer ? { layer: layer.layer.map(withoutLegends) } : {}) };
  }
  /* The vertical scale of every layer; a logarithm with a sign where a value is not above 0. */
  function withAxis(spec, rows, title) {
    if (!drawing.axis) return spec;
    const values = rows.map((row) => row.y).filter((number) => typeof number === "number" && number !== 0);
    const sizes = values.map(Math.abs).sort((a, b) => a - b);
    const signed = rows.some((row) => row.zero === 0); // a zero line has no place on a logarithm
    const log = !signed && values.every((number) => number > 0) ? { type: "log", nice: false } : { type: "symlog", constant: sizes[Math.floor(sizes.length / 2)] || 1 };
    const scale = drawing.axis === "log" ? log : { type: "linear", zero: false };
    const told = title + (page.scales[scale.type] || "");
    const change = (layer) => {
      const y = layer.encoding && layer.encoding.y;
      const { values: marks, labelExpr: labels, ...axis } = (y && y.axis) || {}; // they are those of the scale that was drawn
      if (scale.type === "log") axis.labelExpr = page.log_labels;
      const made = y && y.field ? { ...layer, encoding: { ...layer.encoding, y: { ...y, scale, ...(y.title ? { title: told } : {}), axis } } } : { ...layer };
      if (made.layer) made.layer = made.layer.map(change);
      return made;
    };
    return change(spec);
  }
  /* Compressed: the charts, what unfolds below rows, and the script that draws. */
  let charts = {};
  const loaded = Promise.all([unpack("page-more"), unpack("vega"), font]).then(([more, code]) => {
    const script = document.createElement("script");
    script.textContent = code;
    document.head.append(script);
    const parts = JSON.parse(more);
    charts = parts.charts;
    return parts;
  });
  const views = new Map();
  /* Whether names stand at the left, which take much of the width: titles go below them, and legends have fewer columns. */
  const named = (layer) => ((layer.encoding || {}).y || {}).type === "nominal" || (layer.layer || []).some(named);
  function settings(small, width, names) {
    let base = dark() ? page.config.dark : page.config.light;
    if (names) base = { ...base, axisX: { ...base.axisX, titleAnchor: "end", titleAlign: "right" } };
    if (small) return { ...base, axis: { ...base.axis, labelFontSize: 10, titleFontSize: 11 }, axisYQuantitative: { labelFlush: true }, axisX: { ...base.axisX, titleAnchor: "end", titleAlign: "right" } };
    const many = page.variants.length > page.many;
    return { ...base, legend: { ...base.legend, columns: legendColumns(names ? width - 150 : width), ...(many ? { labelFontSize: 10 } : {}) } };
  }
  function legendColumns(width) {
    const [size, rest] = page.variants.length > page.many ? [10, 52] : [12, 68];
    return Math.max(1, Math.floor((width - 60) / (Math.max(...page.variants.map((name) => extent(name, size))) + rest)));
  }
  async function draw(key) {
    const holder = document.querySelector(`[data-chart="${CSS.escape(key)}"]`);
    if (!holder) return;
    const made = charts[key];
    let spec = made.spec;
    if (crowded(made) && !pointed.has(key)) spec = withoutSeeds(spec);
    let data = Object.fromEntries(Object.entries(made.data).map(([name, table]) => [name, expand(table)]));
    if (made.switched) {
      for (const name of Object.keys(data)) data[name] = smoothed(data[name]);
      data = cut(data);
      spec = { ...spec, layer: spec.layer.filter((layer) => !layer.data || data[layer.data.name].length) }; // levels that are out of sight
      spec = withAxis(spec, Object.values(data).flat(), made.switched);
    }
    if ((narrow() || made.small) && spec.layer) spec = { ...spec, layer: spec.layer.filter((layer) => !/^corner/.test(layer.name || "")) };
    // The key above small figures names the colours, or names beside the marks do.
    const keyed = made.small || (spec.layer || []).some((layer) => /^corner-name/.test(layer.name || ""));
    const width = holder.clientWidth;
    // The lines of a legend take nothing from the chart below it.
    const height = made.height + (keyed ? 0 : 18 * Math.max(0, Math.ceil(made.legend / legendColumns(width)) - 1));
    const names = named(spec);
    spec = broken(spec, { x: Math.max(150, width - (names ? 40 : 180)), y: height - 90, names: width / 2 }, 0);
    if (dark()) spec = recolour(spec, page.dark);
    const now = signals();
    if (keyed) spec = withoutLegends(spec);
    spec = {
      ...spec,
      width: "container",
      height,
      autosize: { type: "fit", contains: "padding", resize: true },
      params: (spec.params || []).map((param) => (param.name in now ? { ...param, value: now[param.name] } : param)),
      datasets: data,
    };
    const old = views.get(key);
    const result = await vegaEmbed(holder, spec, {
      ast: true, renderer: "svg", mode: "vega-lite", config: settings(made.small, width, names),
      actions: { export: true, source: false, compiled: false, editor: false },
      downloadFileName: key, tooltip: { theme: dark() ? "dark" : "custom", disableDefaultStyle: false },
    });
    if (old) old.finalize();
    // Names that turn once the vertical axis has taken its width need room below, which only a second layout gives them.
    if (/"labelAngle":\{"expr"/.test(JSON.stringify(made.spec))) await result.view.resize().runAsync();
    views.set(key, result);
    await keepZoom(key, result.view);
    const picture = holder.querySelector("svg.marks, svg");
    if (picture) { picture.setAttribute("role", "img"); picture.setAttribute("aria-label", made.alt); }
    markOff();
  }
  /* A chart that can be zoomed opens as the address says, and the address follows it. */
  async function keepZoom(key, view) {
    let fields;
    try { fields = view.signal("zoom_tuple_fields"); } catch (error) { return; } // no chart to zoom
    const [x, y] = ["x", "y"].map((channel) => fields.find((field) => field.channel === channel).field);
    const range = zooms.get(key);
    if (range) await view.signal(`zoom_${x}`, range.slice(0, 2)).signal(`zoom_${y}`, range.slice(2)).runAsync();
    let later;
    view.addSignalListener("zoom", (name, value) => {
      if (value[x] && value[y]) zooms.set(key, [...value[x], ...value[y]]);
      else zooms.delete(key);
      clearTimeout(later);
      later = setTimeout(writeView, 200); // browsers refuse an address that changes with every turn of a wheel
    });
  }
  /* A variant that is switched off keeps its place in legends, struck out as in the selection. */
  function markOff() {
    document.querySelectorAll(".key > span, .role-legend-label text").forEach((name) => {
      const entry = name.closest(".key") ? name : name.closest(".role-legend-label").parentElement;
      entry.classList.toggle("off", page.variants.includes(name.textContent.trim()) && !shown.variants.includes(name.textContent.trim()));
    });
  }
  const fail = (key, error) => {
    const holder = document.querySelector(`[data-chart="${CSS.escape(key)}"]`);
    if (holder) holder.textContent = `This chart could not be drawn: ${error.message}`;
    console.error(error);
  };
  /* Charts near the window are drawn first; the others when the browser has nothing else to do, so that print has them all. */
  const waiting = new Set();
  const near = new Set();
  let busy = false;
  const lookout = new IntersectionObserver((entries) => {
    entries.forEach((entry) => near[entry.isIntersecting ? "add" : "delete"](entry.target.dataset.chart));
    work();
  }, { rootMargin: "50% 0px" });
  document.querySelectorAll("[data-chart]").forEach((holder) => lookout.observe(holder));
  const next = () => [...waiting].find((key) => near.has(key));
  const idle = () => new Promise((then) => (window.requestIdleCallback ? window.requestIdleCallback(then, { timeout: 1000 }) : setTimeout(then, 100)));
  async function work() {
    if (busy || !waiting.size) return;
    busy = true;
    while (waiting.size) {
      if (!next()) { document.body.dataset.near = String(near.size); await idle(); }
      const key = next() || [...waiting][0];
      if (key === undefined) break; // printed meanwhile
      waiting.delete(key);
      try { await draw(key); } catch (error) { fail(key, error); }
      await new Promise((then) => setTimeout(then, 0));
    }
    busy = false;
    document.body.dataset.ready = String(views.size);
    finished.splice(0).forEach((then) => then());
  }
  const finished = [];
  function again(keys) { keys.forEach((key) => waiting.add(key)); return work(); }
  function redraw() { again(Object.keys(charts)); }
  if (print) print.addEventListener("click", async () => {
    if (waiting.size || busy) await new Promise((then) => finished.push(then));
    window.print();
  });
  /* Paper is light ground: charts that are drawn for dark ground change their colours while they are printed. */
  const lightOf = Object.fromEntries(Object.entries(page.dark).map(([light, deep]) => [deep, light]));
  function exchange(colours) {
    for (const name of ["fill", "stroke"]) document.querySelectorAll(`.plot svg [${name}]`).forEach((mark) => {
      const other = colours[mark.getAttribute(name)];
      if (other) mark.setAttribute(name, other);
    });
  }
  /* What is not drawn yet is drawn before paper is laid out: drawing waits for nothing but promises, which end first. */
  window.addEventListener("beforeprint", async () => {
    const left = [...waiting];
    waiting.clear();
    await Promise.all(left.map((key) => draw(key).catch((error) => fail(key, error))));
    if (dark()) exchange(lightOf);
  });
  window.addEventListener("afterprint", () => { if (dark()) exchange(page.dark); });
  /* Lines of single seeds, which make most of the work where there are many, wait for the pointer. */
  const MANY_ROWS = 3000;
  const pointed = new Set();
  document.querySelectorAll("[data-chart]").forEach((holder) => holder.addEventListener("pointerenter", () => {
    const key = holder.dataset.chart;
    if (pointed.has(key) || !charts[key] || !crowded(charts[key])) return;
    pointed.add(key);
    again([key]);
  }));
  const crowded = (made) => Object.values(made.data).some((table) => table.length > MANY_ROWS) && /"seeds/.test(JSON.stringify((made.spec.layer || []).map((layer) => layer.name || "")));
  function withoutSeeds(spec) {
    const gone = new Set(spec.layer.map((layer) => layer.name || "").filter((name) => name.startsWith("seeds")));
    return {
      ...spec,
      layer: spec.layer.filter((layer) => !gone.has(layer.name)),
      params: spec.params.filter((param) => !(param.views || []).some((view) => gone.has(view))),
    };
  }
  let small = narrow();
  window.addEventListener("resize", () => { if (narrow() !== small) { small = narrow(); redraw(); } });

  async function select() {
    document.querySelectorAll("[data-pick]").forEach((chip) => {
      chip.setAttribute("aria-pressed", String(shown[chip.dataset.pick].includes(chip.value)));
    });
    const all = ["variants", "seeds", "regimes"].every((kind) => shown[kind].length === page[kind].length);
    document.getElementById("reset").disabled = all;
    document.querySelectorAll("[data-variant],[data-seed],[data-regime]").forEach((item) => {
      if (item.tagName === "TBODY" && item.closest("#comparisons-table")) return; // its own filter does both
      const data = item.dataset;
      const hidden = (data.variant !== undefined && !contrastShown(data.variant, data.reference)) ||
        (data.seed !== undefined && !shown.seeds.includes(data.seed)) ||
        (data.regime !== undefined && page.regimes.includes(data.regime) && !shown.regimes.includes(data.regime));
      item.hidden = hidden;
    });
    filter();
    for (const result of views.values()) {
      const now = signals();
      for (const [name, value] of Object.entries(now)) {
        try { result.view.signal(name, value); } catch (error) { /* a chart without this selection */ }
      }
      await result.view.runAsync();
    }
    markOff();
    writeView();
    window.dispatchEvent(new Event("resize")); // a chart that was hidden has no width until it is shown
    document.body.dataset.selected = JSON.stringify(shown);
  }
  const contrastShown = (variant, reference) => shown.variants.includes(variant) &&
    (reference === undefined || reference === page.baseline || shown.variants.includes(reference));
  document.querySelectorAll("[data-pick]").forEach((chip) => chip.addEventListener("click", (event) => {
    const kind = chip.dataset.pick;
    if (event.altKey || event.shiftKey) shown[kind] = [chip.value];
    else if (shown[kind].includes(chip.value)) {
      if (shown[kind].length === 1) shown[kind] = [...page[kind]];
      else shown[kind] = shown[kind].filter((one) => one !== chip.value);
    } else shown[kind] = page[kind].filter((one) => one === chip.value || shown[kind].includes(one));
    select();
  }));
  document.getElementById("reset").addEventListener("click", () => {
    for (const kind of ["variants", "seeds", "regimes"]) shown[kind] = [...page[kind]];
    select();
  });

  /* ---- tables ---- */
  const value = (cell) => {
    const given = cell ? cell.dataset.value ?? cell.textContent.trim() : "";
    return given === "" ? null : Number.isNaN(Number(given)) ? given.toLowerCase() : Number(given);
  };
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => { if (other.querySelector("button")) other.setAttribute("aria-sort", "none"); });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const many = table.tBodies.length > 1;
        const items = many ? [...table.tBodies] : [...table.tBodies[0].rows];
        const key = (item) => value((many ? item.rows[0] : item).cells[column]);
        items.sort((a, b) => {
          const x = key(a), y = key(b);
          if (x === null || y === null) return (x === null) - (y === null);
          const order = typeof x === typeof y ? (x < y ? -1 : x > y ? 1 : 0) : typeof x === "number" ? -1 : 1;
          return up ? order : -order;
        });
        const parent = many ? table : table.tBodies[0];
        items.forEach((item) => parent.appendChild(item));
      });
    });
  });
  document.querySelectorAll(".more").forEach((button) => button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    const body = button.closest("tbody");
    if (body.rows.length === 1) {
      const made = body.insertRow();
      const cell = made.insertCell();
      [made.className, made.id, cell.colSpan] = ["detail", `${body.id}-more`, body.rows[0].cells.length];
      button.setAttribute("aria-controls", made.id);
      loaded.then((parts) => { cell.innerHTML = parts.folds[body.id]; });
    }
    body.rows[1].hidden = !open;
  }));
  const filters = [...document.querySelectorAll("#comparison-filters select")];
  function filter() {
    const table = document.getElementById("comparisons-table");
    if (!table) return;
    let seen = 0;
    for (const body of table.tBodies) {
      const chosenAway = filters.some((one) => one.value && (body.dataset[one.name] ?? "none") !== one.value);
      const data = body.dataset;
      const away = !contrastShown(data.variant, data.reference) ||
        (page.regimes.includes(data.regime) && !shown.regimes.includes(data.regime));
      body.hidden = chosenAway || away;
      seen += body.hidden ? 0 : 1;
    }
    const told = document.getElementById("comparison-count");
    if (told) told.textContent = `${seen} of ${table.tBodies.length} comparisons`;
  }
  filters.forEach((choice) => choice.addEventListener("change", () => { filter(); writeView(); }));
  document.querySelectorAll("#curve-tools select").forEach((choice) => choice.addEventListener("change", () => {
    drawing[choice.name] = choice.value;
    if (choice.name !== "smooth") zooms.clear(); // a range of one scale may hold nothing that another can show
    writeView();
    again(Object.keys(charts).filter((key) => charts[key].switched));
  }));
  /* Tables that are wider than their place: a line at the edge and words below, until the last column is in view. */
  const regions = [...document.querySelectorAll(".scroll")];
  const cues = new Map();
  function cue(region) {
    const left = region.scrollWidth - region.clientWidth - region.scrollLeft > 2;
    region.classList.toggle("cut", left);
    region.classList.toggle("moved", region.scrollLeft > 2);
    if (left && !cues.has(region)) {
      const words = document.createElement("p");
      words.className = "cue";
      words.setAttribute("aria-hidden", "true");
      words.textContent = "scroll for more columns →";
      region.after(words);
      cues.set(region, words);
    }
    if (cues.has(region)) cues.get(region).hidden = !left;
  }
  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => cue(entry.target)));
  /* Choices that do not fit their line fade out at its end. */
  const fade = (line) => line.classList.toggle("cut", line.scrollWidth - line.clientWidth - line.scrollLeft > 2);
  const lines = new ResizeObserver((entries) => entries.forEach((entry) => fade(entry.target)));
  document.querySelectorAll(".scroller").forEach((line) => { lines.observe(line); line.addEventListener("scroll", () => fade(line), { passive: true }); });
  regions.forEach((region) => { sizes.observe(region); region.addEventListener("scroll", () => cue(region), { passive: true }); });

  /* A link to a number leads to its row, even where a filter or a fold hides it. */
  function follow() {
    const target = place() ? document.getElementById(place()) : null;
    if (!target) return;
    if (target.tagName === "TBODY" && target.hidden) {
      filters.forEach((one) => { one.value = ""; });
      for (const kind of ["variants", "seeds", "regimes"]) shown[kind] = [...page[kind]];
      select();
    }
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    const more = target.querySelector(":scope > tr .more");
    if (more && more.getAttribute("aria-expanded") === "false") more.click();
    (more ? target.rows[0] : target).scrollIntoView({ block: "center" });
  }
  window.addEventListener("hashchange", () => {
    if (location.hash.includes("~")) { readView(); select(); redraw(); }
    follow();
    writeView();
  });

  /* ---- contents ---- */
  const links = new Map([...document.querySelectorAll(".toc a")].map((link) => [link.hash.slice(1), link]));
  const sectionsInView = new Set();
  const watcher = new IntersectionObserver((entries) => {
    entries.forEach((entry) => sectionsInView[entry.isIntersecting ? "add" : "delete"](entry.target.id));
    const here = [...links.keys()].filter((key) => sectionsInView.has(key)).pop();
    links.forEach((link, key) => (key === here ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
  }, { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("main > section").forEach((one) => watcher.observe(one));
  const fold = document.querySelector(".toc details");
  let wide = null;
  const arrange = () => {
    const now = window.innerWidth > 960;
    if (now !== wide) { wide = now; fold.open = now; }
  };
  arrange();
  window.addEventListener("resize", arrange);

  if (kinds.some((kind) => shown[kind].length < page[kind].length)) select(); else filter();
  follow();
  loaded.then(redraw).catch((error) => document.querySelectorAll("[data-chart]").forEach((holder) => fail(holder.dataset.chart, error)));
})();
