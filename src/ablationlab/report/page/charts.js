"use strict";
/* What the finished page and the live page share. */
window.ablationlab = (() => {
  /* Tables travel by column, with words given once; charts want rows. */
  function expand(table) {
    const names = Object.keys(table.columns);
    const rows = Array.from({ length: table.length }, () => ({}));
    for (const name of names) {
      const column = table.columns[name];
      if (column.words) column.at.forEach((place, row) => { rows[row][name] = column.words[place]; });
      else column.values.forEach((value, row) => { rows[row][name] = value; });
    }
    return rows;
  }

  /* Charts are made in light colours; each has its dark one. */
  function recolour(value, dark) {
    if (Array.isArray(value)) return value.map((one) => recolour(one, dark));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, recolour(one, dark)]));
    return typeof value === "string" && dark[value] ? dark[value] : value;
  }
  /* The page's font, in both weights: Vega measures text as soon as it draws. */
  const font = Promise.all([400, 600].map((weight) => document.fonts.load(`${weight} 1em "Ablation Sans"`)));
  const pen = document.createElement("canvas").getContext("2d");
  function extent(text, size) {
    pen.font = `${size}px "Ablation Sans", sans-serif`;
    return pen.measureText(text).width;
  }
  /* On a narrow screen a long axis title is broken into lines instead of cut, and names beside marks leave them half of it. */
  function broken(value, room, width) {
    if (Array.isArray(value)) return value.map((one) => broken(one, room, width));
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, one]) => {
      if (key === "x" || key === "y") return [key, broken(one, room, room[key])];
      if (key === "labelLimit" && room.names) return [key, Math.min(one, room.names)];
      if (key === "title" && width && typeof one === "string" && extent(one, 12) > width) {
        const lines = [""];
        for (const word of one.split(" ")) {
          const last = lines.length - 1;
          if (lines[last] && extent(`${lines[last]} ${word}`, 12) > width) lines.push(word);
          else lines[last] = lines[last] ? `${lines[last]} ${word}` : word;
        }
        return [key, lines];
      }
      return [key, broken(one, room, width)];
    }));
  }

  /* A part of the page that is compressed, as text. */
  async function unpack(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (sign) => sign.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }

  return { expand, recolour, broken, unpack, font, extent };
})();
