// What moves on a page: news by server-sent events, parts that are read again, a theme, buttons that start a check.
// Everything works without this file, but for what moves and the checks.
"use strict";

const live = document.getElementById("live");
let busy = false;
let waiting = false;
let last = 0;

function state(name, text) {
  live.dataset.state = name;
  live.lastElementChild.textContent = text;
}

// Read the page again and put its live parts in the place of the old ones. The server has escaped every value.
async function renew() {
  if (document.hidden) return; // it is read again when somebody looks
  if (busy) { waiting = true; return; }
  const pause = 1500 - (Date.now() - last);
  busy = true;
  if (pause > 0) await new Promise((done) => setTimeout(done, pause));
  try {
    const answer = await fetch(location.href, { headers: { "x-live": "1" }, cache: "no-store" });
    if (answer.ok) {
      swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      state("on", "live");
    } else {
      state("late", answer.status === 503 ? "waits for its turn" : "not live");
    }
  } catch (error) {
    state("lost", "no answer, trying again");
  }
  last = Date.now();
  busy = false;
  if (waiting) { waiting = false; renew(); }
}

function swap(fresh) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const made = fresh.querySelector(`[data-live="${CSS.escape(old.dataset.live)}"]`);
    if (!made) { location.reload(); return; } // the page has other parts now, such as a first stream
    if (made.outerHTML === old.outerHTML) continue;
    if (old.contains(document.activeElement) && document.activeElement !== old) {
      // The keyboard is somewhere in there: keep its place.
      const places = [...old.querySelectorAll("a, button, summary")];
      const at = places.indexOf(document.activeElement);
      old.innerHTML = made.innerHTML;
      const now = old.querySelectorAll("a, button, summary")[at];
      if (now) now.focus({ preventScroll: true });
    } else {
      old.innerHTML = made.innerHTML;
    }
  }
}

// Only a visible page listens: a browser has six connections to a host, and hidden pages would use them up.
let events = null;
const RETRY = 10000;

function listen() {
  if (events || document.hidden) return;
  events = new EventSource("/events");
  events.addEventListener("open", () => state("on", "live"));
  events.addEventListener("changed", renew);
  events.addEventListener("error", () => {
    state("lost", "no answer, trying again");
    // The browser tries again by itself, but not after an answer such as "too many pages".
    if (events && events.readyState === EventSource.CLOSED) { hush(); setTimeout(listen, RETRY); }
  });
}

function hush() {
  if (events) events.close();
  events = null;
}

function begin() {
  const tab = document.querySelector(".tabs [aria-current]");
  if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - (tab.parentElement.clientWidth - tab.clientWidth) / 2;
  if (!document.querySelector("[data-live]")) { state("still", `as of ${new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false })}`); return; }
  listen();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { hush(); return; }
    listen();
    renew();
  });
  addEventListener("pagehide", hush);
  addEventListener("pageshow", listen); // back from the browser's history
}

// Light, dark, or as the system says.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("headgate-theme", root.dataset.theme); } catch (error) { /* storage is off */ }
});

// A form that starts something is sent by a request that names its origin.
for (const form of document.querySelectorAll("form[method=post]")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    for (const button of form.querySelectorAll("button")) button.disabled = true;
    const answer = await fetch(form.action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    if (answer.redirected) location.href = answer.url; else location.reload();
  });
}

// g then o, s, h …: pages by the keyboard. / goes to the first field.
let wanted = false;
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (event.key === "/") {
    const field = document.querySelector("main input:not([type=hidden])");
    if (field) { event.preventDefault(); field.focus(); }
  } else if (wanted) {
    wanted = false;
    if (event.key === "o") location.href = "/";
    const number = Number(event.key);
    const tab = number >= 1 && document.querySelectorAll(".tabs a")[number - 1];
    if (tab) location.href = tab.href;
  } else if (event.key === "g") {
    wanted = true;
    setTimeout(() => { wanted = false; }, 1500);
  }
});

begin();
