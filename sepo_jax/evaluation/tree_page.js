"use strict";
(() => {
  const records = JSON.parse(document.getElementById("records").textContent);
  const detail = document.getElementById("detail");
  const views = [...document.querySelectorAll(".view")];
  let view = null; // the record that is shown
  let chosen = 0; // its segment that stays when the pointer leaves

  // Everything that a record says enters the page as text, never as markup.
  function make(name, text, ...classes) {
    const element = document.createElement(name);
    if (text !== null && text !== undefined) element.textContent = text;
    element.classList.add(...classes);
    return element;
  }

  function show(value, digits = 4) {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    return String(Number(value.toPrecision(digits))).replace("-", "−");
  }

  const segments = () => records[view.dataset.record].segments;
  const childrenOf = (n) => segments().flatMap((s, k) => (s.parent === n ? [k] : []));
  const node = (n) => view.querySelector(`[data-segment="${n}"]`);

  function path(n) {
    const found = [];
    for (; n >= 0; n = segments()[n].parent) found.unshift(n);
    return found;
  }

  // The nearest segment at or above n that has siblings, and theirs.
  function compared(n) {
    for (; n >= 0; n = segments()[n].parent) {
      const all = childrenOf(segments()[n].parent);
      if (all.length > 1) return { child: n, others: all.filter((k) => k !== n) };
    }
    return null;
  }

  function rows(n) {
    const s = segments()[n];
    const found = [];
    if (s.kind === "action") {
      found.push(["advantage A", show(s.advantage)], ["weight w", show(s.weight)]);
    }
    found.push(["return R (mean below)", show(s.return)]);
    const point = s.kind === "action" ? compared(n) : null;
    if (point) {
      const turn = segments()[point.child].turn;
      const where = point.child === n ? "here" : `since turn ${turn + 1}`;
      const others = point.others.map((k) => show(segments()[k].return)).join(", ");
      found.push([`siblings ${where}`, `R ${show(segments()[point.child].return)} beside ${others}`]);
    }
    if (s.kind === "action") {
      found.push(["entropy H", `${show(s.entropy)} nats`], ["reward", show(s.reward)]);
      const sum = s.logp.reduce((a, b) => a + (b === null ? NaN : b), 0);
      if (!s.cut[1]) found.push(["log p of the action", show(sum)]);
    }
    found.push(["tokens", `${s.tokens}${s.truncated ? ", cut by a limit" : ""}`]);
    found.push(["shared by", s.leaves === 1 ? "no other leaf" : `${s.leaves} leaves`]);
    const leaf = records[view.dataset.record].leaves.find((l) => l.segment === n);
    if (leaf) found.push(["episode", leaf.status.replace("_", " ")]);
    return found;
  }

  function figures(n) {
    const table = make("table");
    for (const [name, value] of rows(n)) {
      const line = table.insertRow();
      line.append(make("th", name), make("td", value));
    }
    return table;
  }

  function title(n) {
    const s = segments()[n];
    const k = childrenOf(n).length;
    if (s.kind === "action") return `Action of turn ${s.turn + 1}`;
    const what = s.parent < 0 ? "Prompt" : "Observation";
    return k > 1 ? `${what}: branch point with ${k} continuations` : what;
  }

  function add(box, said, more) {
    for (const [role, content] of said) box.append(make("h3", role), make("pre", content));
    if (more) box.append(make("p", `… ${more} more characters`, "muted"));
  }

  // What a segment says; of an action also what it answers.
  function text(n) {
    const s = segments()[n];
    const box = make("div");
    const above = segments()[s.parent];
    const asked = s.kind === "action" && above?.kind === "given" ? above : null;
    if (s.kind === "action") add(box, [["action", s.text]], s.cut[0]);
    if (asked) add(box, asked.messages.slice(-1), asked.cut[0]);
    if (s.kind !== "action") add(box, s.messages, s.cut[0]);
    return box;
  }

  function tokens(n) {
    const s = segments()[n];
    const box = make("div");
    if (s.kind !== "action") return box;
    const most = Math.max(0.01, ...s.entropies.map((h) => h ?? 0));
    box.append(make("h3", "tokens: log p above, entropy H below"));
    const list = make("div", null, "tokens");
    s.pieces.forEach((piece, k) => {
      const token = make("div", null, "token");
      token.style.setProperty("--part", (s.entropies[k] ?? 0) / most);
      const visible = piece.replace(/\n/g, "↵").replace(/ /g, "␣") || "·";
      token.append(make("code", visible));
      token.append(make("span", show(s.logp[k], 2)), make("span", show(s.entropies[k], 2)));
      list.append(token);
    });
    box.append(list);
    if (s.cut[1]) box.append(make("p", `… ${s.cut[1]} more tokens`, "muted"));
    return box;
  }

  function draw(n) {
    if (!segments()[n]) return detail.replaceChildren();
    const columns = make("div", null, "columns");
    const first = make("div");
    first.append(make("h2", title(n)), figures(n));
    columns.append(first, text(n), tokens(n));
    detail.replaceChildren(columns);
    detail.scrollTop = 0;
    const on = new Set(path(n).map(String));
    for (const each of view.querySelectorAll("[data-edge]")) {
      each.classList.toggle("on", on.has(each.dataset.edge));
    }
    for (const each of view.querySelectorAll("[data-segment],[data-leaf]")) {
      const own = each.dataset.segment ?? each.dataset.leaf;
      each.classList.toggle("on", own === String(n));
      if (each.dataset.segment) each.setAttribute("aria-pressed", own === String(chosen));
    }
  }

  function open(number) {
    view = views[number];
    views.forEach((each) => { each.hidden = each !== view; });
    if (!records[number].segments.length) return detail.replaceChildren();
    chosen = Number(view.dataset.first);
    draw(chosen);
  }

  function neighbour(n, key) {
    const siblings = segments()[n].parent < 0 ? [n] : childrenOf(segments()[n].parent);
    const at = siblings.indexOf(n);
    return {
      ArrowLeft: segments()[n].parent,
      ArrowRight: childrenOf(n)[0],
      ArrowUp: siblings[at - 1],
      ArrowDown: siblings[at + 1],
    }[key];
  }

  const of = (event) => {
    const found = event.target.closest("[data-segment],[data-leaf]");
    return found ? Number(found.dataset.segment ?? found.dataset.leaf) : null;
  };
  document.addEventListener("mouseover", (event) => {
    const n = of(event);
    if (n !== null) draw(n);
  });
  document.addEventListener("mouseout", (event) => {
    if (of(event) !== null) draw(chosen);
  });
  for (const name of ["click", "focusin"]) {
    document.addEventListener(name, (event) => {
      const n = of(event);
      if (n === null) return;
      chosen = n;
      draw(n);
    });
  }
  document.addEventListener("keydown", (event) => {
    const n = of(event);
    const next = n === null ? undefined : neighbour(n, event.key);
    if (next === undefined || next < 0) return;
    event.preventDefault();
    node(next).focus();
  });
  document.getElementById("chooser")?.addEventListener("change", (event) => {
    open(Number(event.target.value));
  });
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
  open(views.findIndex((each) => !each.hidden));
})();
