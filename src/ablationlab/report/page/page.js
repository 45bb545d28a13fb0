(() => {
  "use strict";
  const root = document.documentElement, theme = document.getElementById("theme");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  theme.hidden = false;
  label();
  theme.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);

  // The forest as a file, in the theme that is shown, its font inside.
  const held = document.getElementById("forest");
  const pictures = held ? JSON.parse(held.textContent) : null;
  const whole = () => {
    const svg = pictures[isDark() ? "dark" : "light"];
    const place = svg.indexOf(">") + 1;
    return svg.slice(0, place) + "<style>" + document.getElementById("fonts").textContent + "</style>" + svg.slice(place);
  };
  const save = (blob, ending) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = pictures.name + (isDark() ? "-dark." : ".") + ending;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  const draw = (svg, then) => {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = 2 * image.width;
      canvas.height = 2 * image.height;
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      canvas.toBlob(then);
    };
    image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(svg);
  };
  for (const button of document.querySelectorAll("[data-save]")) {
    button.hidden = !pictures;
    button.addEventListener("click", () => button.dataset.save === "svg"
      ? save(new Blob([whole()], { type: "image/svg+xml" }), "svg")
      : draw(whole(), (blob) => save(blob, "png")));
  }

  // While a study trains: what the page shows is replaced when the records have changed.
  const follow = async () => {
    try {
      const state = await (await fetch("data.json?since=" + encodeURIComponent(document.body.dataset.live))).json();
      const left = document.getElementById("left");
      if (left) left.textContent = state.left;
      if (!state.unchanged) {
        const fresh = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
        document.querySelector("main").replaceWith(fresh.querySelector("main"));
        document.body.dataset.live = fresh.body.dataset.live;
      }
    } catch { }
    setTimeout(follow, 2000);
  };
  if ("live" in document.body.dataset) setTimeout(follow, 1000);
  document.body.dataset.ready = "";
})();
