"use strict";
const root = document.documentElement;
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
const theme = document.getElementById("theme");
const named = () => { theme.textContent = dark() ? "Light" : "Dark"; };
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; named(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", named);
document.querySelector(".tools").hidden = false;
named();

document.getElementById("save").addEventListener("click", () => {
  const text = document.getElementById("data").textContent;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "report.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

// A link to a card, from the graph or a table, unfolds it
const unfold = () => {
  const card = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let one = card; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  if (card && card.tagName === "DETAILS") { card.scrollIntoView(); card.querySelector("summary").focus({ preventScroll: true }); }
};
addEventListener("hashchange", unfold);

const links = new Map([...document.querySelectorAll("nav ul a")].map(link => [link.hash.slice(1), link]));
const seen = new IntersectionObserver(entries => entries.forEach(entry => {
  if (!entry.isIntersecting) return;
  links.forEach(link => link.removeAttribute("aria-current"));
  links.get(entry.target.id)?.setAttribute("aria-current", "true");
}), { rootMargin: "-20% 0px -75%" });
document.querySelectorAll("main > section").forEach(section => seen.observe(section));

const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, logLevel: 1, defaultStyle: false, tooltip: { disableDefaultStyle: true } };
const drawn = [...document.querySelectorAll(".plot")].map(async plot => {
  const spec = JSON.parse(plot.nextElementSibling.textContent);
  spec.config.axis.labelLimit = Math.min(spec.config.axis.labelLimit, plot.clientWidth * 0.4);
  if (plot.clientWidth < 480) spec.config.legend.columns = 1;
  await vegaEmbed(plot, spec, options);
});
Promise.allSettled(drawn).then(results => {
  results.filter(one => one.status === "rejected").forEach(one => console.error(one.reason));
  root.dataset.drawn = results.filter(one => one.status === "fulfilled").length;
  unfold();
});
