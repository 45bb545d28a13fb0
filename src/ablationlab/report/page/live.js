"use strict";
(() => {
  const { expand, recolour, broken, font } = window.ablationlab;
  const at = (id) => document.getElementById(id);
  const root = document.documentElement;
  const wanted = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  const dark = () => (chosen ? chosen === "dark" : wanted.matches);
  const views = new Map();
  let last = null;
  let version = "";

  /* Text of files becomes text nodes, never markup. */
  function element(name, attributes, ...inside) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  }
  /* Places come first, all of them: how wide each is depends on how many there are. */
  function place(figure) {
    const found = document.querySelector(`[data-chart="${CSS.escape(figure.key)}"]`);
    if (found) return found;
    const holder = element("div", { class: "plot", "data-chart": figure.key, style: `min-height: ${figure.height}px` });
    at("charts").append(element("figure", { class: "chart" }, element("h3", {}, figure.title), holder, element("figcaption", {}, figure.caption)));
    window.dispatchEvent(new Event("resize")); // those that are drawn already may have become narrower
    return holder;
  }
  async function chart(figure) {
    const holder = place(figure);
    const tables = Object.fromEntries(Object.entries(figure.data).map(([name, table]) => [name, expand(table)]));
    const old = views.get(figure.key);
    if (old && old.dark === dark()) {
      for (const [name, rows] of Object.entries(tables)) old.view.data(name, rows);
      await old.view.runAsync();
      return;
    }
    let spec = broken(figure.spec, { x: holder.clientWidth - 110, y: figure.height - 90 }, 0);
    if (dark()) spec = recolour(spec, last.dark);
    spec = { ...spec, width: "container", height: figure.height, autosize: { type: "fit", contains: "padding", resize: true }, datasets: tables };
    const made = await vegaEmbed(holder, spec, { ast: true, renderer: "svg", mode: "vega-lite", actions: false, config: dark() ? last.config.dark : last.config.light });
    if (old) old.result.finalize();
    views.set(figure.key, { view: made.view, result: made, dark: dark() });
  }

  async function show(state) {
    at("name").textContent = state.name;
    at("question").textContent = state.question;
    document.title = `${state.percent} · ${state.name}`;
    at("bar").value = state.share;
    at("done").hidden = !state.finished;
    at("interim").hidden = state.finished;
    at("registered").hidden = !state.registered;
    at("report").hidden = !state.report;
    at("no-report").hidden = state.report;
    const warnings = at("warnings");
    warnings.replaceChildren(...(state.warnings.length
      ? state.warnings.map((warning) => element("div", { class: warning.level === "bad" ? "banner bad" : "banner", role: "alert" }, warning.text))
      : [element("p", { class: "none" }, "None so far: no divergence, no spike beyond the registered threshold, no damaged file.")]));
    at("pairs-section").hidden = state.finished || !state.pairs.length;
    at("pairs-note").textContent = state.pairs_note;
    at("pairs").replaceChildren(...state.pairs.map((pair) => element("tr", {},
      element("th", { scope: "row" }, pair.metric, element("small", {}, [pair.role, pair.better].filter(Boolean).join(", "))),
      element("td", { class: "nowrap" }, pair.arms), element("td", {}, pair.regime),
      ...[pair.pairs, pair.lost, pair.mean, pair.range].map((text) => element("td", { class: "n" }, text)))));
    at("runs").replaceChildren(...state.runs.map((run) => {
      const mark = element("span", { class: "swatch" });
      mark.style.setProperty("--c", dark() ? state.dark[run.colour] || run.colour : run.colour);
      const tone = { finished: "good", diverged: "bad", damaged: "bad", running: "warn" }[run.state] || "";
      return element("tr", {}, element("th", { scope: "row", class: "nowrap" }, mark, ` ${run.id}`), element("td", { class: tone }, run.state),
        element("td", { class: "n" }, run.step), element("td", { class: "n" }, run.loss), element("td", { class: "n" }, run.gradient));
    }));
    at("listed").textContent = state.listed;
    state.charts.forEach(place);
    for (const figure of state.charts) await chart(figure);
    document.body.dataset.ready = String(views.size);
    document.body.dataset.version = state.version;
  }
  function words(state) {
    at("words").textContent = `${state.percent} of all steps, ${state.ended} of ${state.total} runs ended${state.finished || !state.left ? "" : `, about ${state.left} left`}`;
  }

  async function ask() {
    try {
      const answer = await fetch(`data.json?since=${encodeURIComponent(version)}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const state = await answer.json();
      at("lost").hidden = true;
      if (state.waiting) at("words").textContent = state.waiting;
      else if (state.unchanged) { last.left = state.left; words(last); }
      else { last = state; version = state.version; words(state); await show(state); }
    } catch (error) {
      at("lost").hidden = false;
    }
    setTimeout(ask, document.hidden ? 8000 : 2000);
  }
  function paint() {
    root.dataset.theme = dark() ? "dark" : "light";
    at("theme").textContent = dark() ? "Light" : "Dark";
    if (last) show(last);
  }
  at("theme").addEventListener("click", () => { chosen = dark() ? "light" : "dark"; paint(); });
  wanted.addEventListener("change", paint);
  paint();
  font.then(ask);
})();
