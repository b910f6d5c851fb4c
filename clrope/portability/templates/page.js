"use strict";
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];

  // Theme: the system's until the button is used; then the choice is kept where the browser allows it.
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const kept = (value) => {
    try {
      return value === undefined ? localStorage.getItem("clrope-theme") : localStorage.setItem("clrope-theme", value);
    } catch { return null; }
  };
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  const name = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
  if (["light", "dark"].includes(kept())) root.dataset.theme = kept();
  system.addEventListener("change", name);
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; kept(root.dataset.theme); name(); });
  name();
  button.hidden = false;

  // Sorting: each head becomes a button.
  const number = (text) => { const found = text.replace(/,/g, "").match(/-?\d+(\.\d+)?(e[-+]?\d+)?/i); return found ? Number(found[0]) : NaN; };
  const sort = (table, column, numeric, up) => {
    const body = table.tBodies[0], sign = up ? 1 : -1;
    const keyed = [...body.rows].map((row) => { const text = row.cells[column].textContent; return [numeric ? number(text) : text, row]; });
    keyed.sort(([a], [b]) => {
      if (!numeric) return sign * a.localeCompare(b, "en", { numeric: true });
      // What has no number comes last in both orders.
      return Number.isNaN(a) || Number.isNaN(b) ? Number.isNaN(a) - Number.isNaN(b) : sign * (a - b);
    });
    body.append(...keyed.map(([, row]) => row));
  };
  for (const table of all("table")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = head.textContent.trim();
      head.replaceChildren(made);
      made.addEventListener("click", () => {
        const numeric = head.classList.contains("n"), before = head.getAttribute("aria-sort");
        // Of numbers the largest are sought first.
        const up = before ? before === "descending" : !numeric;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        sort(table, column, numeric, up);
      });
    });
  }

  // Filtering: rows that contain each word.
  for (const block of all(".table")) {
    const label = block.querySelector(".filter");
    if (!label) continue;
    const input = label.querySelector("input"), count = block.querySelector(".count"), rows = [...block.querySelector("tbody").rows];
    const show = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase(), fits = words.every((word) => text.includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    input.addEventListener("input", show);
    label.hidden = count.hidden = false;
    show();
  }

  // Marks say their numbers and sources, to the pointer and to the keyboard. One mark of a figure is in the tab order.
  const tip = document.getElementById("tip");
  let shown = null;
  const hide = () => { tip.hidden = true; shown = null; };
  const place = () => {
    const at = shown.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const x = shown.tagName === "path" ? at.right : at.left + at.width / 2;
    tip.style.left = `${Math.max(8, Math.min(x - size.width / 2, innerWidth - size.width - 8))}px`;
    tip.style.top = `${at.top - size.height - 10 > 0 ? at.top - size.height - 10 : at.bottom + 10}px`;
  };
  const show = (mark) => {
    tip.textContent = mark.getAttribute("aria-label");
    const source = document.createElement("small");
    source.textContent = mark.dataset.origin;
    tip.append(source);
    tip.hidden = false;
    shown = mark;
    place();
  };
  for (const plot of all("svg.plot")) {
    const marks = all(".mark", plot);
    marks.forEach((mark, k) => {
      const title = mark.querySelector("title");
      mark.setAttribute("aria-label", title.textContent);
      title.remove();
      mark.setAttribute("tabindex", k ? "-1" : "0");
    });
    plot.addEventListener("pointerover", (event) => event.target.matches(".mark") && show(event.target));
    plot.addEventListener("pointerout", hide);
    plot.addEventListener("focusin", (event) => event.target.matches(".mark") && show(event.target));
    plot.addEventListener("focusout", hide);
    plot.addEventListener("keydown", (event) => {
      const now = marks.indexOf(event.target);
      const next = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: marks.length - 1 }[event.key];
      if (event.key === "Escape") hide();
      if (now < 0 || next === undefined) return;
      event.preventDefault();
      const target = marks[Math.max(0, Math.min(next, marks.length - 1))];
      event.target.setAttribute("tabindex", "-1");
      target.setAttribute("tabindex", "0");
      target.focus();
    });
  }
  addEventListener("scroll", () => shown && place(), { passive: true, capture: true });
  addEventListener("keydown", (event) => event.key === "Escape" && hide());
})();
